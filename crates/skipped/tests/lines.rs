//! What a skipped test leaves in the file that `./x test` lists.

use std::process::Command;

const CHILD: &str = "VMTAX_SKIPPED_TEST_CHILD";

#[test]
fn each_call_is_a_line() {
    if std::env::var_os(CHILD).is_some() {
        vmtax_skipped::package("curl");
        vmtax_skipped::system("no\nKVM");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("skipped");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "each_call_is_a_line", "--test-threads", "2"])
        .env(CHILD, "")
        .env("VMTAX_SKIPPED", &file)
        .output()
        .expect("it runs");
    assert!(output.status.success());
    assert_eq!(
        std::fs::read_to_string(file).expect("the file"),
        "package\tcrates/skipped/tests/lines.rs: each_call_is_a_line\tthe package curl is not installed\n\
         system\tcrates/skipped/tests/lines.rs: each_call_is_a_line\tno KVM\n"
    );
}
