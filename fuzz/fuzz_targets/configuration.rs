//! Text as a VM's configuration: QEMU's command line, or XML of libvirt.
#![no_main]

use vmtax_host::configuration;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match configuration::vm(text, "input") {
        None => {}
        Some(Ok(vm)) => {
            let words = vm.arguments.value.expect("words of a command line");
            assert!(words.first().is_some_and(|program| !program.is_empty()));
            assert!(!vm.name.is_empty());
        }
        Some(Err(problem)) => assert!(problem.contains("is no XML"), "{problem}"),
    }
});
