//! Firmware of confidential VMs: which file of this computer boots one, and whether it takes hashes of a kernel.
//!
//! QEMU loads it with `-bios`: a TD has no read-only memory for a flash device (QEMU docs/system/i386/tdx.rst), and of an SEV-SNP guest the
//! whole file is measured (docs/system/i386/amd-memory-encryption.rst: no variable store). Distributions describe their files in
//! `/usr/share/qemu/firmware` (QEMU docs/interop/firmware.json). What a file can do stands in the table of GUIDs at its end, where QEMU looks
//! for it (hw/i386/pc_sysfw_ovmf.c).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vmtax_lab::category::ConfidentialKind;

/// Where distributions describe their firmware.
const DESCRIPTORS: &str = "usr/share/qemu/firmware";
/// Descriptors that are looked at, and bytes of one.
const DESCRIPTORS_MOST: usize = 256;
const DESCRIPTOR_BYTES: u64 = 64 << 10;
/// A file that Debian's and Ubuntu's package has beside its descriptors, and which can both.
const UNDESCRIBED: &str = "usr/share/ovmf/OVMF.fd";
/// Larger files are no firmware: QEMU maps it below 4 GiB.
const BYTES_MOST: u64 = 16 << 20;

/// What a kind of guest needs.
struct FirmwareRow {
    name: &'static str,
    /// Its word in a descriptor.
    feature: &'static str,
    /// The entry of the table that QEMU wants: where the firmware's sections are.
    metadata: &'static str,
    /// The package of Debian and Ubuntu, where it is one of its own.
    package: &'static str,
}

impl FirmwareRow {
    /// Sources of the entries: QEMU target/i386/sev.c, `OVMF_SEV_META_DATA_GUID`, and hw/i386/tdvf.c, `TDX_METADATA_OFFSET_GUID`.
    fn of(guest: ConfidentialKind) -> FirmwareRow {
        match guest {
            ConfidentialKind::Snp => FirmwareRow {
                name: "SEV-SNP",
                feature: "amd-sev-snp",
                metadata: "dc886566-984a-4798-a75e-5585a7bf67cc",
                package: "ovmf-amdsev",
            },
            ConfidentialKind::Tdx => FirmwareRow {
                name: "TDX",
                feature: "intel-tdx",
                metadata: "e47a6535-984a-4798-865e-4685a7bf8ec2",
                package: "ovmf-inteltdx",
            },
        }
    }
}

/// The area for hashes of kernel, initramfs and command line (QEMU target/i386/sev.c, `SEV_HASH_TABLE_RV_GUID`).
const HASHES: &str = "7255371f-3a3b-4b04-927b-1da6efa8d454";
/// The table's last entry, and how far its end is from the file's.
const FOOTER: &str = "96b582de-1fb2-45f7-baea-a366c55a082d";
const BEHIND: usize = 32;

/// A file that boots a confidential VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    pub path: PathBuf,
    /// It has an area for hashes: with `kernel-hashes=on` it boots only the kernel that was measured.
    pub takes_hashes: bool,
}

impl Firmware {
    /// The firmware that is named, or the first that this computer has. The error is a sentence without its end.
    pub fn find(
        guest: ConfidentialKind,
        named: Option<&Path>,
        root: &Path,
    ) -> Result<Firmware, String> {
        if let Some(path) = named {
            return Firmware::open(guest, path);
        }
        let mut found = described(guest, root);
        found.push(root.join(UNDESCRIBED));
        let usable = found.iter().find_map(|path| Firmware::open(guest, path).ok());
        usable.ok_or_else(|| {
            format!(
                "no firmware for {} is installed: {}, or name a file as firmware = in [vm]",
                FirmwareRow::of(guest).name,
                install(guest, root)
            )
        })
    }

    fn open(guest: ConfidentialKind, path: &Path) -> Result<Firmware, String> {
        let bytes = read(path).map_err(|e| format!("firmware {}: {e}", path.display()))?;
        let table = table(&bytes).ok_or_else(|| {
            format!("firmware {}: is no OVMF for confidential guests: it has no table of GUIDs at its end", path.display())
        })?;
        let entry = |name: &str| table.iter().find(|(guid, _)| guid == name).map(|(_, data)| *data);
        let FirmwareRow { name, metadata, .. } = FirmwareRow::of(guest);
        if entry(metadata).is_none() {
            return Err(format!(
                "firmware {}: cannot boot a guest of {name}: its table lacks {metadata}",
                path.display()
            ));
        }
        // Its place and its size: 0 where there is none.
        let takes_hashes = entry(HASHES).is_some_and(|data| data.iter().any(|byte| *byte != 0));
        Ok(Firmware { path: path.to_owned(), takes_hashes })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > BYTES_MOST {
        return Err(io::Error::other(format!(
            "has {length} bytes, which is too much for firmware"
        )));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The entries of the table at the end of a firmware: GUID and data. They are read from the last to the first, each with its length before
/// its GUID.
fn table(bytes: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let last = |bytes: &[u8]| -> Option<(String, usize)> {
        let (rest, guid) = bytes.split_last_chunk::<16>()?;
        let (_, length) = rest.split_last_chunk::<2>()?;
        Some((text(guid), usize::from(u16::from_le_bytes(*length))))
    };
    let end = bytes.get(..bytes.len().checked_sub(BEHIND)?)?;
    let (footer, length) = last(end)?;
    if footer != FOOTER {
        return None;
    }
    let mut rest = end.get(end.len().checked_sub(length)?..end.len().checked_sub(18)?)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (guid, length) = last(rest)?;
        let start = rest.len().checked_sub(length)?;
        let data = rest.get(start..rest.len().checked_sub(18)?)?;
        entries.push((guid, data));
        rest = &rest[..start];
    }
    Some(entries)
}

/// A GUID as EFI stores it: the first three numbers with their lowest byte first.
fn text(guid: &[u8; 16]) -> String {
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::new();
    for (at, index) in order.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", guid[*index]));
    }
    text
}

#[derive(Deserialize)]
struct FirmwareDescriptor {
    mapping: FirmwareMapping,
    features: Vec<String>,
}

#[derive(Deserialize)]
struct FirmwareMapping {
    device: String,
    filename: Option<PathBuf>,
}

/// Files that their descriptors call firmware of this kind, loaded as memory, in the order of the descriptors' names.
fn described(guest: ConfidentialKind, root: &Path) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(root.join(DESCRIPTORS)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &PathBuf| -> Option<PathBuf> {
        let text = vmtax_durable::read_small_text(path, DESCRIPTOR_BYTES).ok()?;
        let descriptor: FirmwareDescriptor = serde_json::from_str(&text).ok()?;
        let is_it =
            descriptor.features.iter().any(|feature| feature == FirmwareRow::of(guest).feature);
        let file = descriptor.mapping.filename.filter(|_| descriptor.mapping.device == "memory")?;
        is_it.then(|| root.join(file.strip_prefix("/").unwrap_or(&file)))
    };
    paths.iter().take(DESCRIPTORS_MOST).filter_map(read).collect()
}

/// How to install one, by the distribution's name.
fn install(guest: ConfidentialKind, root: &Path) -> String {
    let text = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
    let is_of = |names: &[&str]| {
        let values = text
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
        let mut words = values.flat_map(|value| value.trim_matches('"').split_whitespace());
        words.any(|word| names.contains(&word))
    };
    let package = FirmwareRow::of(guest).package;
    if is_of(&["debian", "ubuntu"]) {
        format!("apt-get install {package}, or ovmf where there is no such package")
    } else if is_of(&["fedora", "rhel", "centos"]) {
        "dnf install edk2-ovmf".to_owned()
    } else if is_of(&["suse", "opensuse"]) {
        "zypper install qemu-ovmf-x86_64".to_owned()
    } else {
        format!("install OVMF built for it ({package} in Debian)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry as EFI has it: data, length, GUID.
    fn entry(guid: &str, data: &[u8]) -> Vec<u8> {
        let hex: Vec<u8> = guid.bytes().filter(|byte| *byte != b'-').collect();
        let bytes: Vec<u8> = hex
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let length = (data.len() + 18) as u16;
        let guid = order.iter().map(|at| bytes[*at]);
        data.iter().copied().chain(length.to_le_bytes()).chain(guid).collect()
    }

    fn firmware(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut table = entries.concat();
        let length = (table.len() + 18) as u16;
        let footer = entry(FOOTER, &[]);
        table.extend(length.to_le_bytes());
        table.extend(&footer[2..]);
        [vec![0xff; 100], table, vec![0; BEHIND]].concat()
    }

    #[test]
    fn firmware_is_found_by_its_descriptor_and_its_table() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let find = |guest, named: Option<&Path>| Firmware::find(guest, named, root);
        let error = find(ConfidentialKind::Snp, None).unwrap_err();
        assert!(error.contains("no firmware for SEV-SNP is installed: install OVMF"), "{error}");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/os-release"), "NAME=x\nID=ubuntu\nID_LIKE=debian\n").unwrap();
        let error = find(ConfidentialKind::Tdx, None).unwrap_err();
        assert!(error.contains("apt-get install ovmf-inteltdx, or ovmf where"), "{error}");

        let folder = root.join("usr/share/ovmf");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.join(DESCRIPTORS)).unwrap();
        let snp = FirmwareRow::of(ConfidentialKind::Snp).metadata;
        let hashes = |size: u8| entry(HASHES, &[0, 0, 0, 0, size, 0, 0, 0]);
        fs::write(folder.join("OVMF.fd"), firmware(&[entry(snp, &[1, 0, 0, 0]), hashes(0)]))
            .unwrap();
        // Without a descriptor, and without an area for hashes.
        let found = find(ConfidentialKind::Snp, None).unwrap();
        assert_eq!((found.path, found.takes_hashes), (folder.join("OVMF.fd"), false));
        assert!(find(ConfidentialKind::Tdx, None).unwrap_err().contains("no firmware for TDX"));

        fs::write(folder.join("amdsev.fd"), firmware(&[hashes(4), entry(snp, &[1, 0, 0, 0])]))
            .unwrap();
        let descriptor = |device: &str| {
            format!(
                r#"{{"mapping": {{"device": "{device}", "filename": "/usr/share/ovmf/amdsev.fd"}}, "features": ["amd-sev", "amd-sev-snp"]}}"#
            )
        };
        let file = root.join(DESCRIPTORS).join("60-amdsev.json");
        fs::write(&file, descriptor("memory")).unwrap();
        let found = find(ConfidentialKind::Snp, None).unwrap();
        assert_eq!((found.path, found.takes_hashes), (folder.join("amdsev.fd"), true));
        for other in [descriptor("flash"), "{".to_owned(), "{}".to_owned()] {
            fs::write(&file, other).unwrap();
            assert_eq!(find(ConfidentialKind::Snp, None).unwrap().path, folder.join("OVMF.fd"));
        }
        let error = find(ConfidentialKind::Tdx, Some(&folder.join("amdsev.fd"))).unwrap_err();
        assert!(error.contains("amdsev.fd: cannot boot a guest of TDX"), "{error}");
        let error = find(ConfidentialKind::Tdx, Some(&folder.join("none.fd"))).unwrap_err();
        assert!(error.contains("none.fd: No such file"), "{error}");
    }

    #[test]
    fn damaged_tables_are_none() {
        let whole = firmware(&[
            entry(HASHES, &[1; 8]),
            entry(FirmwareRow::of(ConfidentialKind::Tdx).metadata, &[2; 4]),
        ]);
        assert_eq!(table(&whole).unwrap().len(), 2);
        for length in 0..whole.len() {
            assert_eq!(table(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = table(&bytes);
        }
    }
}
