//! The distribution's kernel, its modules, and what is wrong with other kernels.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

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
fn a_kernel_without_kvm_is_an_error() {
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
fn a_damaged_module_is_an_error() {
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
fn a_missing_image_is_an_error() {
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
    assert_eq!(kept(cache.path()), [entry_name]);
}

/// The kernels of a cache, and what is being made there.
fn kept(cache: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(cache.join("kernels")).expect("the cache is there");
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter(|name| name != ".lock").collect()
}

/// Processes that start with an empty cache, as the tests of a new system do, all get the kernel, which is fetched once.
#[test]
fn processes_with_the_same_empty_cache_all_get_the_kernel() {
    let cache = tempfile::tempdir().unwrap();
    // A stand-in that notes each download, and passes it on.
    let bin = cache.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\necho \"$@\" >> \"$VMTAX_TEST_CACHE/downloads\"\n\
                  PATH=${PATH#*:}\nexec apt-get \"$@\"\n";
    fs::write(bin.join("text"), script).unwrap();
    // By another process: a program that is open for writing cannot be started, and children that other tests start meanwhile would hold
    // our descriptor.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).args([bin.join("text"), bin.join("apt-get")]);
    assert!(install.status().unwrap().success());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let others: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "gets_the_kernel", "--nocapture"])
                .env("VMTAX_TEST_CACHE", cache.path())
                .env("PATH", &path)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for other in others {
        let output = other.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
    }
    assert_eq!(kept(cache.path()).len(), 1);
    let downloads = fs::read_to_string(cache.path().join("downloads")).unwrap();
    assert_eq!(downloads.lines().count(), 1, "{downloads}");
}

/// Its other half. Alone it does nothing.
#[test]
fn gets_the_kernel() {
    let Some(cache) = std::env::var_os("VMTAX_TEST_CACHE") else { return };
    let kernel = kernel::distribution(Path::new(&cache)).unwrap();
    assert!(kernel.modules_for(&["kvm"]).is_ok());
    // Unpacked into the cache, as for an emulator that boots no image.
    kernel.vmlinux().unwrap();
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
