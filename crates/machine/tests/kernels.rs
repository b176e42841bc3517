//! The distribution's kernel, its modules, and what is wrong with other kernels.

use std::fs;
use std::path::Path;

use vmtax_machine::Error;
use vmtax_machine::kernel::{self, Kernel};

fn distribution() -> Kernel {
    kernel::distribution(&kernel::cache_folder()).expect("apt gives a kernel")
}

#[test]
fn modules_come_in_load_order() {
    let names: Vec<String> = distribution()
        .modules_for(&["kvm-amd", "kvm_intel"])
        .unwrap()
        .into_iter()
        .map(|module| module.name)
        .collect();
    let place = |name: &str| names.iter().position(|found| found == name);
    assert!(place("kvm").is_some());
    assert!(place("kvm") < place("kvm_amd"), "{names:?}");
    assert!(place("kvm") < place("kvm_intel"), "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "kvm").count(), 1);
}

#[test]
fn a_kernel_without_kvm_gets_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let mut kernel = kernel::files(&distribution().image, Some(folder.path())).unwrap();
    let error = kernel.modules_for(&["kvm-amd"]).unwrap_err();
    assert!(matches!(&error, Error::Module { .. }));
    let words = format!("kernel {} has no usable module kvm_amd", kernel.release);
    assert!(error.to_string().starts_with(&words), "{error}");
    kernel.modules = None;
    let error = kernel.modules_for(&["kvm-amd"]).unwrap_err();
    assert!(error.to_string().contains("no folder of modules was given"), "{error}");
}

#[test]
fn a_damaged_module_gets_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let image = distribution().image;
    for (name, bytes) in
        [("kvm.ko", &b"\x7fELF"[..]), ("kvm.ko.xz", b"no xz"), ("kvm.ko.zst", b"x")]
    {
        let modules = folder.path().join("modules").join(name);
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join(name), bytes).unwrap();
        let error =
            kernel::files(&image, Some(&modules)).unwrap().modules_for(&["kvm"]).unwrap_err();
        assert!(matches!(&error, Error::Module { .. }), "{error}");
    }
}

#[test]
fn a_missing_image_gets_a_sentence() {
    let error = kernel::files(Path::new("/nonexistent/bzImage"), None).unwrap_err();
    assert!(
        error.to_string().starts_with("/nonexistent/bzImage: cannot open the kernel"),
        "{error}"
    );
}

/// Fetches from the archive again: a cache entry is broken in two ways, and heals from both.
#[test]
fn broken_cache_entries_heal() {
    let whole = distribution();
    let cache = tempfile::tempdir().unwrap();
    let entry_name = whole.image.ancestors().nth(2).unwrap().file_name().unwrap();
    let entry = cache.path().join("kernels").join(entry_name);
    // A cut image: found when the kernel is asked for.
    fs::create_dir_all(entry.join("boot")).unwrap();
    let image = entry.join("boot").join(whole.image.file_name().unwrap());
    fs::write(&image, b"cut").unwrap();
    let sums = whole.image.ancestors().nth(2).unwrap().join("SHA256SUMS");
    fs::copy(sums, entry.join("SHA256SUMS")).unwrap();
    let kernel = kernel::distribution(cache.path()).unwrap();
    assert_eq!(kernel.image, image);
    assert_eq!(fs::read(&image).unwrap(), fs::read(&whole.image).unwrap());
    // A damaged module: found when it is read.
    let module = find(kernel.modules.as_deref().unwrap(), "kvm.ko").unwrap();
    fs::write(&module, b"damaged").unwrap();
    assert!(kernel.modules_for(&["kvm"]).is_ok());
    assert_eq!(fs::read_dir(cache.path().join("kernels")).unwrap().count(), 1);
}

fn find(folder: &Path, start: &str) -> Option<std::path::PathBuf> {
    for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        if entry.path().is_dir() {
            if let Some(found) = find(&path, start) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy().starts_with(start) {
            return Some(path);
        }
    }
    None
}
