//! Multiboot programs as guests: `--flat`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{json, output, refused};

/// Where the image is loaded, and bytes before its code: the multiboot header.
const LOADED: u32 = 0x40_0000;
const HEADER: usize = 12;

/// Code for 32-bit protected mode; text that it prints follows it.
#[derive(Default)]
struct FlatCode(Vec<u8>);

impl FlatCode {
    /// Prints the command line, by the multiboot information at EBX.
    fn command_line(mut self) -> FlatCode {
        self.0.extend([0x8b, 0x73, 0x10]); // mov esi, [ebx + 16]
        self.0.extend([0xba, 0xf8, 0x03, 0, 0]); // mov edx, 0x3f8
        // again: lodsb; test al, al; jz end; out dx, al; jmp again; end:
        self.0.extend([0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8]);
        self
    }

    /// Prints a text, which lies in the code.
    fn print(mut self, text: &str) -> FlatCode {
        let length = text.len() as u32;
        self.0.push(0xe9); // jmp over the text
        self.0.extend(length.to_le_bytes());
        let at = LOADED + (HEADER + self.0.len()) as u32;
        self.0.extend(text.as_bytes());
        self.0.extend([0xba, 0xf8, 0x03, 0, 0]); // mov edx, 0x3f8
        self.0.push(0xbe); // mov esi, text
        self.0.extend(at.to_le_bytes());
        self.0.push(0xb9); // mov ecx, length
        self.0.extend(length.to_le_bytes());
        self.0.extend([0xf3, 0x6e]); // rep outsb
        self
    }

    /// Executes CPUID ten times.
    fn cpuid(mut self) -> FlatCode {
        self.0.extend([0xbd, 10, 0, 0, 0]); // mov ebp, 10
        // again: xor eax, eax; cpuid; dec ebp; jnz again
        self.0.extend([0x31, 0xc0, 0x0f, 0xa2, 0x4d, 0x75, 0xf9]);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> FlatCode {
        self.0.extend(bytes);
        self
    }

    /// Ends with an exit code.
    fn exit(mut self, code: u8) -> FlatCode {
        self.0.extend([0xba, 0xf4, 0, 0, 0, 0xb8, code, 0, 0, 0, 0xef]); // mov edx, 0xf4; mov eax, code; out dx, eax
        self
    }

    /// As an ELF file with a multiboot header.
    fn image(self, folder: &Path) -> PathBuf {
        let size = (HEADER + self.0.len()) as u32;
        let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec();
        let mut words =
            |words: &[u32]| bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        // Version, entry, program headers, no sections, no flags; sizes of headers: 52, 32 (one), 40 (none).
        words(&[1, LOADED + HEADER as u32, 52, 0, 0, 52 | 32 << 16, 1 | 40 << 16, 0]);
        words(&[1, 84, LOADED, LOADED, size, size + 0x1000, 7, 4]);
        words(&[0x1bad_b002, 0, 0_u32.wrapping_sub(0x1bad_b002)]);
        bytes.extend(self.0);
        let path = folder.join("own.flat");
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn a_program_runs_and_its_output_verdict_and_exits_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let code = FlatCode::default().command_line().print("\nPASS: cpuid\r\nSUMMARY: 1 tests\r\n");
    let code = code.bytes(&[0xba, 0x34, 0x12, 0, 0, 0xec]); // mov edx, 0x1234; in al, dx
    let image = code.cpuid().exit(0).image(folder.path());
    let image = image.to_str().unwrap();
    for (host, cpuid) in [("amd", "cpuid"), ("intel", "CPUID")] {
        let run = folder.path().join(host);
        let run = run.to_str().unwrap();
        let arguments = ["lab", "run", "--host", host, "--flat", image, "--append", "one two"];
        let done = output(&[&arguments[..], &["-o", run]].concat());
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        let printed = "own.flat one two\nPASS: cpuid\nSUMMARY: 1 tests\n";
        assert!(said.starts_with(printed), "{said}");
        assert!(said.contains("\nown.flat: passed (exit code 0)\n"), "{said}");
        assert_eq!(fs::read_to_string(format!("{run}/program.txt")).unwrap(), printed);
        let manifest = fs::read_to_string(format!("{run}/run.json")).unwrap();
        assert!(manifest.contains("passed (exit code 0)"), "{manifest}");
        // Both the kernel's counter and the recording have each exit.
        assert!(said.contains(&format!("{cpuid} 10")), "{said}");
        let report = json(&["report", run]);
        let tables = report["tables"].as_array().unwrap();
        let rows = tables.iter().flat_map(|table| table["rows"].as_array().unwrap());
        let counts: Vec<Option<u64>> = rows
            .filter(|row| row["reason"].as_str() == Some(cpuid))
            .map(|row| row["count"].as_u64())
            .collect();
        assert_eq!(counts, [Some(10)], "{report}");
        let notes = report["losses"]["notes"].to_string();
        assert!(notes.contains("I/O port 0x1234 (1)"), "{notes}");
    }
}

#[test]
fn programs_that_fail_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let run = |code: FlatCode, more: &[&str]| {
        let image = code.image(folder.path());
        refused(&[&["lab", "run", "--flat", image.to_str().unwrap()], more].concat())
    };
    let (code, said) = run(FlatCode::default().print("FAIL: cpuid\n").exit(1), &[]);
    assert_eq!(code, 6, "{said}");
    assert!(said.contains("own.flat: failed (exit code 1)\n  FAIL: cpuid\n"), "{said}");
    let (code, said) = run(FlatCode::default().exit(38), &[]);
    assert_eq!(code, 0, "{said}");
    // An invalid instruction, for which there is no handler.
    let (code, said) = run(FlatCode::default().bytes(&[0x0f, 0x0b]), &[]);
    assert_eq!(code, 7, "{said}");
    assert!(said.contains("own.flat: the guest ended in a triple fault, on QEMU TCG "), "{said}");
    assert!(said.contains("; it printed nothing"), "{said}");
    let (_, said) = run(FlatCode::default().print("first\nlast\n").bytes(&[0x0f, 0x0b]), &[]);
    assert!(said.contains("; its last line: \"last\""), "{said}");
    // A loop without end; what it printed is at the end of the message.
    let (code, said) =
        run(FlatCode::default().print("endless\n").bytes(&[0xeb, 0xfe]), &["--limit", "30s"]);
    assert_eq!(code, 7, "{said}");
    assert!(said.contains("was not done after 30 s"), "{said}");
    // What it did then.
    assert!(
        said.contains("a processor is at 0x") && said.contains(" ms of processor time"),
        "{said}"
    );
    let (code, said) = run(FlatCode::default().exit(0), &["--nested"]);
    assert_eq!(code, 2, "{said}");
    let image = folder.path().join("own.flat");
    fs::write(&image, vec![0x5a; 100_000]).unwrap();
    let (code, said) = refused(&["lab", "run", "--flat", image.to_str().unwrap()]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("is not a multiboot image"), "{said}");
    let (code, _) = refused(&["lab", "run", "--flat", "/nonexistent/x.flat"]);
    assert_eq!(code, 3);
}

/// QEMU's test device: its register, a byte of its memory, and an interrupt line, which KVM's PIC sees as requested.
#[test]
fn the_test_device_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let failed = |code: FlatCode, exit: u8| {
        // jz over the end
        code.bytes(&[0x74, 0x0b]).exit(exit)
    };
    let mut code = FlatCode::default();
    // mov dx, 0xe0; mov eax, 0x12345678; out dx, eax; xor eax, eax; in eax, dx; cmp eax, 0x12345678
    code = code.bytes(&[0xba, 0xe0, 0, 0, 0, 0xb8, 0x78, 0x56, 0x34, 0x12, 0xef, 0x31, 0xc0, 0xed]);
    code = failed(code.bytes(&[0x3d, 0x78, 0x56, 0x34, 0x12]), 1);
    // mov byte [0xff000010], 0x5a; cmp byte [0xff000010], 0x5a
    code = code.bytes(&[0xc6, 0x05, 0x10, 0, 0, 0xff, 0x5a]);
    code = failed(code.bytes(&[0x80, 0x3d, 0x10, 0, 0, 0xff, 0x5a]), 2);
    // The master PIC is initialized with vectors from 0x20 on, all lines masked but read: ICW1 to ICW4.
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 0x04), (0x21, 0x01), (0x21, 0xff)] {
        code = code.bytes(&[0xb0, value, 0xe6, port]); // mov al, value; out port, al
    }
    // Line 5 goes up: mov dx, 0x2005; mov al, 1; out dx, al. OCW3 reads the requests: mov al, 0x0a; out 0x20, al; in al, 0x20; and al, 0x20; cmp al, 0x20
    code = code.bytes(&[0xba, 0x05, 0x20, 0, 0, 0xb0, 1, 0xee]);
    code = code.bytes(&[0xb0, 0x0a, 0xe6, 0x20, 0xe4, 0x20, 0x24, 0x20, 0x3c, 0x20]);
    let image = failed(code, 3).print("PASS: device\n").exit(0).image(folder.path());
    let done = output(&["lab", "run", "--flat", image.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(
        said.contains("PASS: device") && !said.contains("devices that its VM does not have"),
        "{said}"
    );
}
