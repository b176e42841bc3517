//! Reads the names of the running kernel's functions.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use vmtax_guest::functions::{CodePart, HostKernels, KernelFunctions, LoadedAddresses, build_id};
use vmtax_guest::order::{Order, Report};

use crate::Result;
use crate::trace::Tracer;

/// Where the functions are of this kernel, and what L1 has loaded if there is one, which is ordered to say it.
pub(crate) fn kernels(
    inner: Option<impl FnOnce(&Order) -> Result<(Report, Tracer)>>,
) -> Result<HostKernels> {
    let order = Order { functions: true, ..Order::default() };
    let inner = inner.map(|ask| ask(&order)).transpose()?;
    Ok(HostKernels {
        functions: functions()?,
        host: loaded(),
        guest: inner.and_then(|(report, _)| report.loaded),
        inner: None,
    })
}

/// The functions of `/proc/kallsyms`. Of several names of one address the first is kept.
pub(crate) fn functions() -> Result<KernelFunctions> {
    const PATH: &str = "/proc/kallsyms";
    let failed = |e: std::io::Error| format!("{PATH}: {e}");
    let mut file = BufReader::with_capacity(1 << 16, File::open(PATH).map_err(failed)?);
    let mut parts: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    let mut line = String::new();
    while file.read_line(&mut line).map_err(failed)? > 0 {
        if let Some((part, address, name)) = function(&line) {
            if !parts.contains_key(part) {
                parts.insert(part.to_owned(), BTreeMap::new());
            }
            if let Some(functions) = parts.get_mut(part) {
                functions.entry(address).or_insert_with(|| name.to_owned());
            }
        }
        line.clear();
    }
    let part = |(name, functions): (String, BTreeMap<u64, String>)| {
        let mut before = 0;
        let steps = functions
            .into_iter()
            .map(|(address, name)| (address - std::mem::replace(&mut before, address), name));
        CodePart { name, functions: steps.collect() }
    };
    Ok(KernelFunctions { parts: parts.into_iter().map(part).collect() })
}

/// `ffffffffc0a01000 t svm_vcpu_run\t[kvm_amd]`: module, address, name.
fn function(line: &str) -> Option<(&str, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    if !matches!(kind, "t" | "T" | "w" | "W") {
        return None;
    }
    let address = u64::from_str_radix(address, 16).ok().filter(|address| *address >> 63 == 1)?;
    // Marks of an assembler of arm64: $x, $d.
    if name.starts_with('$') {
        return None;
    }
    let module = words.next().unwrap_or_default();
    Some((module.trim_matches(['[', ']']), address, name))
}

/// Modules of the running kernel and their addresses.
pub(crate) fn loaded() -> LoadedAddresses {
    let notes = std::fs::read("/sys/kernel/notes").unwrap_or_default();
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    // kvm_amd 163840 0 - Live 0xffffffffc0a01000
    let module = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = words.get(5)?.strip_prefix("0x")?;
        Some(((*words.first()?).to_owned(), u64::from_str_radix(address, 16).ok()?))
    };
    let modules: Vec<(String, u64)> = modules.lines().filter_map(module).collect();
    let own = build_id(&notes).map(|id| (String::new(), id.to_vec()));
    let of_modules = modules.iter().filter_map(|(name, _)| {
        let path = format!("/sys/module/{name}/notes/.note.gnu.build-id");
        let notes = std::fs::read(path).ok()?;
        Some((name.clone(), build_id(&notes)?.to_vec()))
    });
    let builds = own.into_iter().chain(of_modules).collect();
    LoadedAddresses { notes: crc32fast::hash(&notes), modules, builds, own: Vec::new() }
}

/// Modules of the running kernel with their functions.
pub(crate) fn loaded_functions() -> Result<LoadedAddresses> {
    let loaded = loaded();
    let is_module = |part: &CodePart| loaded.modules.iter().any(|(name, _)| *name == part.name);
    let own = functions()?.parts.into_iter().filter(is_module).collect();
    Ok(LoadedAddresses { own, ..loaded })
}
