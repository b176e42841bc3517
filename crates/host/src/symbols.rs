//! Addresses -> names of functions: of the kernel by `/proc/kallsyms`, of programs and libraries by their own symbol
//! tables.
//!
//! What is below the root need not be what was recorded. The kernel is known by where its text began, and of another
//! boot nothing is named. Files are taken as they are.
//!
//! Separate debug files are found by build id.
//!
//! Left out on purpose: debug information (inlined functions), symbols of the PLT.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::root::Root;

/// Larger files are not looked into.
const FILE: u64 = 512 << 20;
/// Larger lists of the kernel's symbols are not read.
const KALLSYMS: u64 = 256 << 20;
/// Files whose tables are kept.
const FILES: usize = 4096;
/// More functions than a file has.
const FUNCTIONS: usize = 4 << 20;
/// Longer names are cut.
const LONGEST_NAME: usize = 512;

/// Symbol tables below a root.
#[derive(Debug)]
pub struct Symbols {
    root: Root,
    kernel: Option<KernelSymbols>,
    files: HashMap<String, Option<Elf>>,
}

impl Symbols {
    /// Of the system at this root. Nothing is read before it is needed.
    pub fn new(root: &Path) -> io::Result<Symbols> {
        Ok(Symbols { root: Root::open(root)?, kernel: None, files: HashMap::new() })
    }

    /// The kernel's function at this address, if the kernel whose text began at `text` is the one of this root.
    pub fn kernel(&mut self, address: u64, text: Option<u64>) -> Option<String> {
        let kernel = self.kernel.get_or_insert_with(|| KernelSymbols::read(&self.root));
        if kernel.text.is_none() || kernel.text != text {
            return None;
        }
        kernel.functions.at(address).map(demangled)
    }

    /// The function of the running kernel at this address.
    pub fn running(&mut self, address: u64) -> Option<String> {
        let kernel = self.kernel.get_or_insert_with(|| KernelSymbols::read(&self.root));
        kernel.functions.at(address).map(demangled)
    }

    /// The function at this place in a file.
    pub fn file(&mut self, path: &str, offset: u64) -> Option<String> {
        if !path.starts_with('/') {
            return None;
        }
        if !self.files.contains_key(path) {
            if self.files.len() >= FILES {
                return None;
            }
            let elf = self.elf(path);
            self.files.insert(path.to_owned(), elf);
        }
        let elf = self.files.get(path)?.as_ref()?;
        elf.functions.at(elf.address(offset)?).map(demangled)
    }

    /// A file's own symbols, or those of its debug file where it has one.
    fn elf(&self, path: &str) -> Option<Elf> {
        let bytes = self.root.bytes(path, FILE).ok()?;
        let elf = Elf::read(&bytes)?;
        let debug = elf.debug_file.as_ref().and_then(|path| self.root.bytes(path, FILE).ok());
        match debug.and_then(|bytes| Elf::read(&bytes)) {
            // Its segments are those of the file, without the content.
            Some(debug) if !debug.functions.0.is_empty() => {
                Some(Elf { functions: debug.functions, ..elf })
            }
            _ => Some(elf),
        }
    }
}

fn demangled(name: &str) -> String {
    if let Ok(name) = rustc_demangle::try_demangle(name) {
        return format!("{name:#}");
    }
    let plain = || name.to_owned();
    if !name.starts_with("_Z") {
        return plain();
    }
    let options = cpp_demangle::DemangleOptions::new().recursion_limit(64);
    let symbol = cpp_demangle::Symbol::new(name);
    symbol.ok().and_then(|symbol| symbol.demangle_with_options(&options).ok()).unwrap_or_else(plain)
}

/// Functions by address.
#[derive(Debug, Default)]
struct SymbolFunctions(Vec<SymbolFunction>);

#[derive(Debug)]
struct SymbolFunction {
    start: u64,
    /// 0: up to the next.
    len: u64,
    name: Box<str>,
    binding: Binding,
}

/// Rank of a symbol as a name: the best is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Weak,
    Local,
    Global,
}

impl SymbolFunctions {
    /// Of several names of one address the one that perf would choose is kept: one with a length, not weak, global, with
    /// few underscores before it, long.
    fn new(mut all: Vec<SymbolFunction>) -> SymbolFunctions {
        let underscores = |name: &str| name.bytes().take_while(|b| *b == b'_').count();
        all.sort_by(|a, b| {
            let worth = |f: &SymbolFunction| (f.len > 0, f.binding);
            a.start
                .cmp(&b.start)
                .then(worth(b).cmp(&worth(a)))
                .then(underscores(&a.name).cmp(&underscores(&b.name)))
                .then(b.name.len().cmp(&a.name.len()))
                .then(a.name.cmp(&b.name))
        });
        all.dedup_by_key(|function| function.start);
        SymbolFunctions(all)
    }

    fn at(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|function| function.start <= address);
        let function = self.0.get(after.checked_sub(1)?)?;
        let is_inside = function.len == 0 || address - function.start < function.len;
        is_inside.then_some(&*function.name)
    }
}

/// The running kernel's symbols.
#[derive(Debug)]
struct KernelSymbols {
    /// Where its text begins. Unknown: it is hidden from this user, or there is no such file.
    text: Option<u64>,
    functions: SymbolFunctions,
}

impl KernelSymbols {
    fn read(root: &Root) -> KernelSymbols {
        let mut all = Vec::new();
        let mut text = None;
        let mut line = |line: &str| {
            let mut words = line.split_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                return;
            };
            let Ok(start) = u64::from_str_radix(address, 16) else { return };
            // All addresses are 0 for unprivileged readers.
            if start == 0 || all.len() >= FUNCTIONS {
                return;
            }
            if name == "_text" {
                text = Some(start);
            }
            let binding = match kind {
                "T" => Binding::Global,
                "t" => Binding::Local,
                "W" | "w" => Binding::Weak,
                _ => return,
            };
            all.push(SymbolFunction { start, len: 0, name: short(name), binding });
        };
        // Without it there are no names, and that shows.
        let _ = root.lines("/proc/kallsyms", KALLSYMS, &mut line);
        KernelSymbols { text, functions: SymbolFunctions::new(all) }
    }
}

/// A program's or library's symbols.
#[derive(Debug)]
struct Elf {
    /// (place in the file, bytes, address)
    segments: Vec<(u64, u64, u64)>,
    functions: SymbolFunctions,
    /// The file with its stripped debug information, where distributions install it.
    debug_file: Option<String>,
}

impl Elf {
    fn read(bytes: &[u8]) -> Option<Elf> {
        let elf = object::File::parse(bytes).ok()?;
        let segments = elf.segments().map(|segment| {
            let (offset, len) = segment.file_range();
            (offset, len, segment.address())
        });
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let functions = symbols.filter(|s| s.kind() == SymbolKind::Text && s.is_definition());
        let all = functions.take(FUNCTIONS).filter_map(|symbol| {
            let binding = match (symbol.is_weak(), symbol.is_global()) {
                (true, _) => Binding::Weak,
                (_, true) => Binding::Global,
                _ => Binding::Local,
            };
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some(SymbolFunction {
                start: symbol.address(),
                len: symbol.size(),
                name: short(name),
                binding,
            })
        });
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let debug_file = elf.build_id().ok().flatten().filter(|id| id.len() > 1).map(|id| {
            format!("/usr/lib/debug/.build-id/{}/{}.debug", hex(&id[..1]), hex(&id[1..]))
        });
        let functions = SymbolFunctions::new(all.collect());
        Some(Elf { segments: segments.collect(), functions, debug_file })
    }

    /// The address of a place in the file.
    fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, len, address)| {
            let within = offset.checked_sub(*start).filter(|within| within < len)?;
            address.checked_add(within)
        })
    }
}

fn short(name: &str) -> Box<str> {
    name.chars().take(LONGEST_NAME).collect::<String>().into_boxed_str()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The addresses of this test's own functions, as the loader has them, are named by its own file.
    #[test]
    fn a_program_names_its_own_functions() {
        let exe = std::env::current_exe().unwrap();
        let bytes = fs::read(&exe).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let mut symbols = Symbols::new(Path::new("/")).unwrap();
        let mut checked = 0;
        for symbol in elf.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 8) {
            let segment = elf.segments().find(|s| {
                symbol.address().checked_sub(s.address()).is_some_and(|at| at < s.file_range().1)
            });
            let segment = segment.unwrap();
            let offset = symbol.address() - segment.address() + segment.file_range().0;
            let first = symbols.file(exe.to_str().unwrap(), offset).unwrap();
            let last = symbols.file(exe.to_str().unwrap(), offset + symbol.size() - 1);
            assert_eq!(last.as_ref(), Some(&first));
            checked += 1;
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn the_kernel_is_known_by_its_text() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("proc")).unwrap();
        fs::write(
            folder.path().join("proc/kallsyms"),
            "ffffffff81000000 T _text\nffffffff81000000 T startup_64\nffffffff81000100 t vmx_vcpu_run\t[kvm_intel]\n\
             ffffffff81000100 W __weak_alias\nffffffff81000200 D data\nffffffff81000300 T __x64_sys_ioctl\nbroken\n",
        )
        .unwrap();
        let mut symbols = Symbols::new(folder.path()).unwrap();
        let text = Some(0xffff_ffff_8100_0000);
        assert_eq!(symbols.kernel(0xffff_ffff_8100_0010, text).as_deref(), Some("startup_64"));
        assert_eq!(symbols.kernel(0xffff_ffff_8100_02ff, text).as_deref(), Some("vmx_vcpu_run"));
        assert_eq!(symbols.kernel(0xffff_ffff_8100_0310, text).as_deref(), Some("__x64_sys_ioctl"));
        assert_eq!(symbols.kernel(0x1000, text), None);
        for other in [None, Some(0xffff_ffff_9200_0000)] {
            assert_eq!(symbols.kernel(0xffff_ffff_8100_0310, other), None);
        }
    }

    #[test]
    fn names_of_compilers_are_readable() {
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangled("_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(demangled("vmx_vcpu_run"), "vmx_vcpu_run");
        assert_eq!(demangled("_Znonsense"), "_Znonsense");
    }
}
