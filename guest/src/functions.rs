//! Addresses of kernel functions.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKernels {
    pub functions: KernelFunctions,
    /// Modules of the host and their addresses.
    pub host: LoadedAddresses,
    /// Modules of L1, if there is one with Linux. It runs the same kernel, so the functions are the host's.
    pub guest: Option<LoadedAddresses>,
    /// Those of a Linux guest of L1 or of Xen, if it has one, with the same kernel.
    pub inner: Option<LoadedAddresses>,
}

/// The functions of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFunctions {
    /// The kernel's own (without a name), those of each module, and of other code: `bpf`, `__builtin__kprobes`.
    pub parts: Vec<CodePart>,
}

/// Functions of one module or other code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodePart {
    /// Name of the module.
    pub name: String,
    /// Functions by address: the offset from the previous one (the first: from 0), and the name.
    pub functions: Vec<(u64, String)>,
}

/// Addresses that differ between boots of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedAddresses {
    /// CRC-32 of the notes of the kernel, its build among them.
    pub notes: u32,
    /// Modules and their addresses.
    pub modules: Vec<(String, u64)>,
    /// Build ids: of the kernel (without a name) and of its modules, as far as they have one.
    pub builds: Vec<(String, Vec<u8>)>,
    /// Functions of its modules, if it has others than the host. Empty: they are the host's.
    pub own: Vec<CodePart>,
}

/// The GNU build id in ELF notes.
pub fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: usize = 3;
    let word = |at: usize| {
        let bytes = notes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let (name, text, kind) = (word(0)?, word(4)?, word(8)?);
    notes = notes.get(12..)?;
    let found = notes.get(name.checked_next_multiple_of(4)?..)?;
    let id = found.get(..text)?;
    if kind == NT_GNU_BUILD_ID && notes.get(..name) == Some(b"GNU\0") {
        return Some(id);
    }
    build_id(found.get(text.checked_next_multiple_of(4)?..)?)
}

#[cfg(test)]
mod tests {
    use super::build_id;

    #[test]
    fn the_build_id_is_found_among_notes() {
        let note = |name: &[u8], kind: u32, text: &[u8]| {
            let mut note = Vec::new();
            for word in [name.len() as u32, text.len() as u32, kind] {
                note.extend(word.to_le_bytes());
            }
            for part in [name, text] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let other = note(b"Xen\0", 3, b"xen-3.0");
        let id = note(b"GNU\0", 3, &[7; 20]);
        let both = [other.clone(), id].concat();
        assert_eq!(build_id(&both), Some(&[7; 20][..]));
        assert_eq!(build_id(&other), None);
        for cut in 0..both.len() {
            assert_eq!(build_id(&both[..cut]), None, "{cut}");
        }
        assert_eq!(build_id(&[0xff; 64]), None);
    }
}
