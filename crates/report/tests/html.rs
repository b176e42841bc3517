//! The HTML renderer without a browser: what is in the page, and what must never be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "shared with the tests of other renderers")]
mod ledgers;
#[path = "browser/markup.rs"]
mod markup;

use vmtax_report::html::{Html, MAX_ROWS};
use vmtax_report::{Document, Renderer};

fn render(doc: &Document) -> String {
    let mut out = Vec::new();
    Html.render(doc, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_page_is_well_formed() {
    let pages = [
        ("empty", ledgers::empty()),
        ("counts", ledgers::counts()),
        ("small", ledgers::small()),
        ("nesting", ledgers::nesting()),
        ("busy", ledgers::busy()),
        ("hostile", ledgers::hostile()),
        ("huge", ledgers::huge()),
        ("large", ledgers::large()),
        ("lab", ledgers::lab()),
        ("hostile lab", ledgers::hostile_lab()),
    ];
    for (name, doc) in pages {
        if let Err(problem) = markup::check(&render(&doc)) {
            panic!("{name}: {problem}");
        }
    }
}

#[test]
fn hostile_text_is_escaped() {
    for doc in [ledgers::hostile(), ledgers::hostile_lab()] {
        hostile_text_stays_text_of(&render(&doc));
    }
}

fn hostile_text_stays_text_of(page: &str) {
    for raw in [
        "<script>alert",
        "</title>--",
        "<img",
        "onerror=alert(2)>",
        "\u{202e}",
        "\u{1b}",
        "\0",
        "x onerror=alert(2)>'",
    ] {
        assert!(!page.contains(raw), "{raw:?} is in the page as it was in the recording");
    }
    // One style and one script element of vmtax, and the content policy that allows no other.
    for (element, count) in
        [("<script", 1), ("</script", 1), ("<style", 1), ("</style", 1), ("<title>vmtax", 1)]
    {
        assert_eq!(page.matches(element).count(), count, "{element}");
    }
    // It is shown all the same.
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains(r"\u{202e}gnp.exe\u{0}"));
    assert!(page.len() < 2 << 20, "a long string must not make a long page: {} bytes", page.len());
}

#[test]
fn nothing_is_fetched_from_elsewhere() {
    let page = render(&ledgers::busy());
    assert!(page.contains("default-src 'none'; style-src 'sha256-"));
    for far in [
        "http://", "https://", "src=", "@import", "url(\"", "url(http", "<iframe", "style=\"",
        "onclick=",
    ] {
        assert!(!page.contains(far), "{far}");
    }
}

#[test]
fn badges_show_the_limitations_of_figures() {
    let page = render(&ledgers::small());
    for badge in ["INCOMPLETE", "LOSSES"] {
        assert!(page.contains(badge), "{badge}");
    }
    let banner = "class=\"notice emulation\"";
    assert_eq!(render(&ledgers::hostile()).matches(banner).count(), 1);
    let page = render(&ledgers::counts());
    for badge in [banner, "INCOMPLETE", "LOSSES"] {
        assert!(!page.contains(badge), "{badge}");
    }
    assert!(page.contains("No known losses"));
}

/// The exit in which a vCPU is when its recording ends has no entry; more of them, or anything else that is missing, is a warning.
#[test]
fn exits_at_the_end_of_a_recording_are_no_warning() {
    let mut document = ledgers::busy();
    let vcpus = {
        let keys = document.ledger.exits.keys().map(|key| (key.vm, key.vcpu));
        keys.collect::<std::collections::BTreeSet<_>>().len() as u64
    };
    document.ledger.losses.unpaired_exits = vcpus;
    let page = render(&document);
    let mild =
        format!("Complete but for {vcpus} exit{} at its end", if vcpus == 1 { "" } else { "s" });
    assert!(page.contains(&mild) && !page.contains("LOSSES"), "{mild}");
    assert!(page.contains("(no following kvm_entry), excluded from all tables."));
    document.ledger.losses.unpaired_exits = vcpus + 1;
    assert!(render(&document).contains("LOSSES"));
    document.ledger.losses.unpaired_exits = vcpus;
    document.ledger.losses.undecodable = 1;
    assert!(render(&document).contains("LOSSES"));
}

#[test]
fn every_section_of_an_empty_ledger_is_marked_empty() {
    let page = render(&ledgers::empty());
    for sentence in [
        "The source has no exits.",
        "The source has no time split of the vCPUs.",
        "The source has no times of exits.",
        "The source has no durations.",
        "The source holds no kvm_msr events, so these are not known.",
        "the recording has no kvm_nested_vmexit events",
        "None known",
    ] {
        let page = page.replace("&#39;", "'");
        assert!(page.contains(&sentence.replace("&#39;", "'")), "{sentence}");
    }
}

#[test]
fn counts_without_times_have_no_time_columns() {
    let page = render(&ledgers::counts());
    assert!(page.contains(">143,258<"));
    assert!(page.contains("The source counts without timing"));
    assert!(!page.contains("p99 ≤"), "there is nothing to take a quantile of");
    let mut words = page.split(|c: char| !c.is_alphanumeric() && c != '_');
    assert!(words.all(|word| word != "NaN" && word != "inf"));
}

#[test]
fn a_long_table_is_truncated_and_names_the_complete_output() {
    let page = render(&ledgers::large());
    let rows = page.matches(" scope=\"row\" data-key").count();
    assert_eq!(rows, 2 * MAX_ROWS + 256, "and a row per vCPU");
    assert!(page.contains("The first 2,000 of 10,000 rows are here"));
    assert!(page.contains("--event mmio --format csv"));
    assert_eq!(
        page.matches("<svg class=\"stack\"").count(),
        256 + 1,
        "a bar per vCPU and one for all"
    );
    assert!(page.matches("class=\"hit\"").count() <= 2 * 601, "the timeline is bounded");
    assert!(page.len() < 12 << 20, "{} bytes", page.len());
}

#[test]
fn unrecorded_values_are_not_zero() {
    let mut doc = ledgers::large();
    doc.ledger.recording.coverage.sched = false;
    doc.ledger.time.retain(|&(_, vcpu), split| {
        split.sum.preempted_ns = 0;
        vcpu == 0
    });
    let page = render(&doc);
    assert_eq!(page.matches("not recorded, so counted elsewhere").count(), 1);
    assert!(page.contains("No sched_switch in the recording"));
}

#[test]
fn sort_keys_are_exact() {
    let page = render(&ledgers::huge());
    let exact = format!("data-v=\"{}000000\" data-ns=\"{0}\"", u64::MAX);
    assert!(page.contains(&exact), "beyond 2^53, to the last digit");
}

#[test]
fn a_page_of_an_emulated_run_has_one_banner() {
    for (doc, said) in [
        (ledgers::nesting(), "times do not reflect hardware, counts do."),
        (
            ledgers::lab(),
            "counts and path lengths are exact; times are instructions of the emulator (1 ns each) and do not reflect hardware.",
        ),
    ] {
        let page = render(&doc).replace("&#39;", "'");
        assert_eq!(page.matches("Not hardware. ").count(), 1);
        assert_eq!(page.matches(said).count(), 1);
    }
    assert!(!render(&ledgers::large()).contains("Not hardware. "));
}

#[test]
fn a_lab_run_shows_its_operations_first() {
    let page = render(&ledgers::lab());
    let at = |id: &str| page.find(&format!("<section id=\"{id}\"")).unwrap();
    let order = ["headline", "operations", "nested", "recording", "time-split", "losses"];
    assert!(order.map(at).is_sorted());
    // What nesting costs is the headline; what it was counted from is folded, also on paper.
    let headline = &page[at("headline")..at("operations")];
    assert!(headline.contains(">23.3<") && headline.contains("a nested cpuid"), "{headline}");
    assert!(page.contains("<details class=\"more\"><summary>Time split, Over time, "));
    assert!(page.contains("details:not(.more)::details-content"));
    // Exits, list, path and ratio of CPUID at L2.
    let row = page.split("<tr>").find(|row| {
        row.contains(">cpuid</th>") && row.contains(">L2</td>") && row.contains("vmload 2,")
    });
    let row = row.unwrap();
    for cell in ["<b>6</b>", "<b>24,120.3</b>", "cpuid 1 →", "vmrun 1", ">200</td>"] {
        assert!(row.contains(cell), "{cell}: {row}");
    }
    let beside = &page
        [page.find("id=\"beside-title\"").unwrap()..page.find("id=\"operations-title\"").unwrap()];
    let row = beside.split("<tr>").find(|row| row.contains(">cpuid</th>")).unwrap();
    for cell in ["<b>23.3</b>", ">1,036<", ">24,120.3<", ">1.005<", ">6<"] {
        assert!(row.contains(cell), "{cell}: {row}");
    }
    assert!(!page.contains("exit tax"), "a suite of operations has none");
    let page = render(&ledgers::busy());
    assert!(!page.contains("id=\"operations\"") && page.contains("exit tax"));
}

#[test]
fn the_published_figures_stand_beside_the_recordings() {
    let page = render(&ledgers::lab());
    let table = page.split("<tbody id=\"published-rows\">").nth(1).unwrap();
    let table = &table[..table.find("</table>").unwrap()];
    let text = |cell: &str| -> String {
        let inner = &cell[..cell.find("</t").unwrap()];
        inner.split('<').filter_map(|piece| piece.split_once('>')).map(|(_, text)| text).collect()
    };
    let found: Vec<Vec<String>> = table
        .split("<tr>")
        .skip(1)
        .map(|row| row.split("<t").skip(1).take(3).map(text).collect())
        .collect();
    let expected = [
        ["VMREAD", "2", "–"],
        ["VMWRITE", "1", "–"],
        ["XSETBV (xsetbv)", "1", "0"],
        ["MSR_READ (msr)", "1", "1"],
        ["VMRESUME (vmrun)", "1", "1"],
        ["vmload", "–", "2"],
        ["vmsave", "–", "1"],
        ["all", "6", "5"],
    ];
    assert_eq!(found, expected.map(|row| row.map(str::to_owned).to_vec()));
    for said in ["KVM Forum 2017", "25.0", "23.3", "in cycles", "in instructions"] {
        assert!(page.contains(said), "{said}");
    }
    // Without a lab's paths there are counts, and no measured ratio.
    assert!(render(&ledgers::nesting()).contains("Here it was not measured"));
    assert!(!render(&ledgers::large()).contains("published-title"), "no CPUID exit of L2");
}

#[test]
fn the_nested_section_shows_the_cost_of_an_exit() {
    let page = render(&ledgers::nesting());
    assert!(page.contains("2.50"), "ancillary exits per exit");
    assert!(page.contains("1.50"), "reads of MSRs per exit");
}
