//! docs/commands.md lists the exit codes that the programs have.

use vmtax_cli::exit::Code;

#[test]
fn the_document_lists_every_code() {
    let document = include_str!("../../../docs/commands.md");
    for (code, word) in [
        (0, "success"),
        (Code::Unexpected as u8, "unexpected"),
        (Code::Usage as u8, "usage"),
        (Code::Input as u8, "input"),
        (Code::Data as u8, "data"),
        (Code::Output as u8, "output"),
        (Code::Breach as u8, "breach"),
        (Code::Machine as u8, "machine"),
    ] {
        let row = format!("| {code} | {word} |");
        assert!(document.contains(&row), "docs/commands.md lacks {row:?}");
    }
    assert_eq!(
        document
            .lines()
            .filter(|l| l.starts_with("| ") && l.as_bytes()[2].is_ascii_digit())
            .count(),
        8
    );
}
