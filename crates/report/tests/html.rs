//! The HTML renderer without a browser: what is in the page, and what must never be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "browser/documents.rs"]
mod documents;
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
        ("empty", documents::empty()),
        ("count only", documents::count_only()),
        ("demo", documents::demo()),
        ("hostile", documents::hostile()),
        ("large", documents::large()),
    ];
    for (name, doc) in pages {
        if let Err(problem) = markup::check(&render(&doc)) {
            panic!("{name}: {problem}");
        }
    }
}

#[test]
fn hostile_text_stays_text() {
    let page = render(&documents::hostile());
    for raw in [
        "<script>alert",
        "</title>--",
        "<img",
        "onerror=alert(2)>",
        "\u{202e}",
        "\u{1b}",
        "\0",
        "x onerror=alert(2)>\"'",
    ] {
        assert!(!page.contains(raw), "{raw:?} is in the page as it was in the recording");
    }
    // One style and one script element, ours, and the content policy that allows no other.
    for (element, count) in
        [("<script", 1), ("</script", 1), ("<style", 1), ("</style", 1), ("<title>vmtax", 1)]
    {
        assert_eq!(page.matches(element).count(), count, "{element}");
    }
    // It is shown all the same.
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains(r"\u{202e}gnp.exe\u{1b}[31m\u{0}\u{a}"));
    assert!(page.len() < 2 << 20, "a long string must not make a long page: {} bytes", page.len());
}

#[test]
fn nothing_is_fetched_from_elsewhere() {
    let page = render(&documents::demo());
    assert!(page.contains("default-src 'none'; style-src 'sha256-"));
    for far in [
        "http://", "https://", "src=", "@import", "url(\"", "url(http", "<iframe", "style=\"",
        "onclick=",
    ] {
        assert!(!page.contains(far), "{far}");
    }
}

#[test]
fn the_badges_say_what_qualifies_the_figures() {
    let page = render(&documents::hostile());
    for badge in ["EMULATED", "INCOMPLETE", "LOSSES"] {
        assert!(page.contains(badge), "{badge}");
    }
    let page = render(&documents::count_only());
    for badge in ["EMULATED", "INCOMPLETE", "LOSSES"] {
        assert!(!page.contains(badge), "{badge}");
    }
    assert!(page.contains("No known losses"));
}

#[test]
fn an_empty_ledger_says_so_in_every_section() {
    let page = render(&documents::empty());
    for sentence in [
        "The source has no exits.",
        "The source does not say where the vCPUs&#39; time went.",
        "The source does not say when exits happened.",
        "The source has no durations.",
        "The source holds no kvm_msr events, so these are not known.",
        "the recording holds no kvm_nested_vmexit events",
        "None known",
    ] {
        let page = page.replace("&#39;", "'");
        assert!(page.contains(&sentence.replace("&#39;", "'")), "{sentence}");
    }
}

#[test]
fn counts_without_times_have_no_time_columns() {
    let page = render(&documents::count_only());
    assert!(page.contains(">143,258<"));
    assert!(page.contains("The source counts without timing"));
    assert!(!page.contains("p99 ≤"), "there is nothing to take a quantile of");
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn a_large_table_is_cut_and_says_where_the_rest_is() {
    let page = render(&documents::large());
    let rows = page.matches(" scope=\"row\" data-key").count();
    assert_eq!(rows, 2 * MAX_ROWS);
    assert!(page.contains("The 2,000 rows with the most time of 10,000 are here"));
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
fn what_was_not_recorded_is_not_zero() {
    let mut doc = documents::large();
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
    let page = render(&documents::hostile());
    assert!(page.contains(&format!("data-v=\"{}\"", u64::MAX)), "beyond 2^53, to the last digit");
}

#[test]
fn the_nested_section_shows_the_cost_of_an_exit() {
    let page = render(&documents::demo());
    // 964 + 489 + 482 exits of L1 for 500 exits of L2.
    assert!(page.contains("3.87"), "ancillary exits per exit");
    assert!(page.contains("1.93"), "vmloads per exit");
}
