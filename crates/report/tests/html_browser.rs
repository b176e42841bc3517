//! The HTML report in a real browser: it loads without a network, and what its script promises works.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "shared with the tests of the program")]
mod browser;
#[expect(dead_code, reason = "shared with the tests of other renderers")]
mod ledgers;

use std::fs;
use std::path::{Path, PathBuf};

use browser::Browser;
use serde_json::{Value, json};
use vmtax_report::html::Html;
use vmtax_report::{Document, Renderer};

/// The first column of the shown rows of the first table, in order.
const NAMES: &str = "[...document.querySelectorAll('#table-0-vmexit tbody tr:not([hidden])')].map(r => r.cells[0].textContent)";

fn write(dir: &Path, name: &str, doc: &Document) -> PathBuf {
    let path = dir.join(format!("{name}.html"));
    Html.render(doc, &mut fs::File::create(&path).unwrap()).unwrap();
    path
}

/// A browser that shows the page of a ledger.
fn opened(doc: &Document) -> Browser {
    let dir = tempfile::tempdir().unwrap();
    let mut browser = Browser::start();
    browser.resize(1280, 900);
    browser.open(&write(dir.path(), "page", doc));
    browser
}

/// The column of the first table under this heading, as its cells' sort keys or texts.
fn column(browser: &mut Browser, index: u32) -> Vec<String> {
    let values = browser.eval(&format!(
        "[...document.querySelectorAll('#table-0-vmexit tbody tr')].map(r => r.cells[{index}].dataset.v ?? r.cells[{index}].textContent)"
    ));
    let values = values.as_array().unwrap();
    values.iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn numbers(browser: &mut Browser, index: u32) -> Vec<u128> {
    column(browser, index).iter().map(|v| v.parse().unwrap()).collect()
}

/// The elements that reach farthest to the right, without those in a box that scrolls.
const WIDEST: &str = "[...document.body.querySelectorAll('*')]\
    .filter(e => e.getBoundingClientRect().left + Math.max(e.scrollWidth, e.offsetWidth) > innerWidth + 1 && !e.closest('.scroll, .drawn, nav'))\
    .map(e => `${e.tagName} ${e.className} ${Math.round(e.getBoundingClientRect().right)} ${e.textContent.slice(0, 40)}`)\
        .reverse().slice(0, 25).join('; ')";

#[test]
fn every_page_loads_without_complaint_and_fits_its_window() {
    let dir = tempfile::tempdir().unwrap();
    let mut browser = Browser::start();
    let pages = [
        ("empty", ledgers::empty()),
        ("counts", ledgers::counts()),
        ("busy", ledgers::busy()),
        ("hostile", ledgers::hostile()),
        ("large", ledgers::large()),
        ("lab", ledgers::lab()),
        ("hostile-lab", ledgers::hostile_lab()),
    ];
    for (name, doc) in pages {
        let path = write(dir.path(), name, &doc);
        browser.resize(1280, 900);
        browser.open(&path);
        assert_eq!(
            browser.eval("document.documentElement.classList.contains('js')"),
            json!(true),
            "{name}: the script runs"
        );
        assert_eq!(browser.eval("document.scripts.length"), json!(1), "{name}");
        assert_eq!(browser.eval("document.images.length"), json!(0), "{name}");
        for width in [1280, 390] {
            browser.resize(width, 900);
            let wide = browser.eval("document.documentElement.scrollWidth");
            assert!(
                wide.as_u64().unwrap() <= width.into(),
                "{name}: {wide} px wide in a window of {width}: {}",
                browser.eval(WIDEST)
            );
        }
        assert_eq!(browser.complaints(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn tables_sort_by_pointer_and_by_key() {
    let mut browser = opened(&ledgers::busy());
    let header = |n: u32| format!("#table-0-vmexit thead th:nth-child({n}) button");
    let sorted = |browser: &mut Browser, n: u32| {
        browser.eval(&format!("document.querySelector('#table-0-vmexit thead th:nth-child({n})').getAttribute('aria-sort')"))
    };
    // Columns: reason, level, exits, % of count, time, ...
    let (reason, exits, time) = (1, 3, 5);

    let mut falling = numbers(&mut browser, time - 1);
    assert_eq!(sorted(&mut browser, time), json!("descending"), "as rendered");
    assert!(falling.is_sorted_by(|a, b| a >= b) && falling.len() > 10);

    browser.click(&header(time));
    falling.reverse();
    assert_eq!(numbers(&mut browser, time - 1), falling, "a second order by time is the reverse");
    assert_eq!(sorted(&mut browser, time), json!("ascending"));

    browser.click(&header(exits));
    assert!(numbers(&mut browser, exits - 1).is_sorted_by(|a, b| a >= b), "most exits first");
    assert_eq!(
        (sorted(&mut browser, exits), sorted(&mut browser, time)),
        (json!("descending"), Value::Null)
    );
    browser.click(&header(exits));
    assert!(numbers(&mut browser, exits - 1).is_sorted());

    browser.click(&header(reason));
    let words = column(&mut browser, reason - 1);
    assert!(words.is_sorted_by_key(|w| w.to_lowercase()), "{words:?}");
    browser.click(&header(reason));
    let words = column(&mut browser, reason - 1);
    assert!(words.is_sorted_by(|a, b| a.to_lowercase() >= b.to_lowercase()), "{words:?}");

    // The keyboard alone: Enter and Space on a heading that has the focus.
    browser.eval(&format!("document.querySelector('{}').focus()", header(exits)));
    browser.press("Enter");
    assert_eq!(sorted(&mut browser, exits), json!("descending"));
    browser.press(" ");
    assert_eq!(sorted(&mut browser, exits), json!("ascending"));
    assert!(numbers(&mut browser, exits - 1).is_sorted());
    browser.press("Tab");
    let next = browser.eval("document.activeElement.closest('th').cellIndex");
    assert_eq!(next, json!(exits), "Tab goes to the next heading");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn sorting_is_exact_beyond_what_a_double_holds() {
    let mut browser = opened(&ledgers::nesting());
    // 2^53 and its neighbour are the same double; rows without a value come last either way.
    let script = "(() => {
        const rows = document.querySelector('#table-0-vmexit tbody').rows;
        rows[0].cells[4].dataset.v = '9007199254740993';
        rows[1].cells[4].dataset.v = '9007199254740992';
    })()";
    browser.eval(script);
    browser.click("#table-0-vmexit thead th:nth-child(5) button");
    let sorted = [200_000_000_000, 9_007_199_254_740_992, 9_007_199_254_740_993];
    assert_eq!(numbers(&mut browser, 4), sorted);
    browser.click("#table-0-vmexit thead th:nth-child(5) button");
    assert!(numbers(&mut browser, 4).iter().eq(sorted.iter().rev()));
    browser
        .eval("delete document.querySelector('#table-0-vmexit tbody').rows[0].cells[4].dataset.v");
    for _ in 0..2 {
        browser.click("#table-0-vmexit thead th:nth-child(5) button");
        let last = browser.eval(
            "document.querySelector('#table-0-vmexit tbody').rows[2].cells[4].dataset.v ?? null",
        );
        assert_eq!(last, Value::Null);
    }
}

#[test]
fn filters_leave_the_matching_rows() {
    let mut browser = opened(&ledgers::busy());
    let output = "document.querySelector('#table-0-vmexit output').textContent";
    let all = browser.eval(NAMES).as_array().unwrap().clone();
    assert_eq!(browser.eval(output), json!(format!("{} rows", all.len())));

    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), json!("table-0-vmexit-filter"));
    assert_eq!(
        browser.eval("document.activeElement.value"),
        json!(""),
        "the key itself is not typed"
    );
    browser.write("CPU");
    let expected: Vec<&Value> =
        all.iter().filter(|n| n.as_str().unwrap().to_lowercase().contains("cpu")).collect();
    assert_eq!(browser.eval(NAMES), json!(expected));
    assert_eq!(browser.eval(output), json!(format!("{} of {} rows", expected.len(), all.len())));
    // A second word narrows: only L2.
    browser.write("  l2");
    assert_eq!(browser.eval(NAMES).as_array().unwrap().len(), 1);

    // A filter survives sorting.
    browser.click("#table-0-vmexit thead th:nth-child(3) button");
    assert_eq!(browser.eval(NAMES).as_array().unwrap().len(), 1);

    browser.eval("document.querySelector('#table-0-vmexit-filter').focus()");
    browser.press("Escape");
    assert_eq!(browser.eval(NAMES).as_array().unwrap().len(), all.len());
    browser.write("no such thing");
    assert_eq!(browser.eval(NAMES), json!([]));
    assert_eq!(browser.eval(output), json!(format!("0 of {} rows", all.len())));
    // A slash in the filter is a slash.
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.value"), json!("no such thing/"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn operations_sort_and_filter() {
    let mut browser = opened(&ledgers::lab());
    let shown = |browser: &mut Browser, cell: u32| {
        let rows = "[...document.querySelectorAll('#operations-rows tr:not([hidden])')]";
        let values = browser.eval(&format!("{rows}.map(r => r.cells[{cell}].textContent)"));
        let values = values.as_array().unwrap();
        values.iter().map(|v| v.as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let header = |n: u32| format!("table:has(#operations-rows) thead th:nth-child({n}) button");
    let (name, level, path, of_l2) = (0, 1, 4, 9);
    let rows = shown(&mut browser, name);
    assert_eq!(rows, ["cpuid", "hlt-timer", "rdtsc", "touch-4k", "cpuid"]);
    assert_eq!(shown(&mut browser, level)[3..], ["L1", "L2"], "as the suite has them");

    browser.click(&header(path + 1));
    let longest = shown(&mut browser, name);
    assert_eq!(longest, ["cpuid", "hlt-timer", "cpuid", "rdtsc", "touch-4k"], "longest first");
    browser.click(&header(path + 1));
    let shortest = shown(&mut browser, name);
    assert_eq!(shortest, ["rdtsc", "cpuid", "hlt-timer", "cpuid", "touch-4k"], "none: last");
    browser.click(&header(of_l2 + 1));
    let shares = shown(&mut browser, of_l2);
    assert_eq!((shares[0].as_str(), shares[4].as_str()), ("0.2\u{a0}%", ""), "L1 has none: last");

    // The first filter of the page is that of the operations.
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), json!("operations-filter"));
    browser.write("l2 IA32_DEBUGCTL");
    let found = shown(&mut browser, name);
    assert_eq!(found, ["cpuid"], "what exits are about is searched too");
    let output = browser.eval("document.querySelector('#operations output').textContent");
    assert_eq!(output, json!("1 of 5 rows"));
    for (scheme, problems) in
        [("light", contrast(&mut browser, "light")), ("dark", contrast(&mut browser, "dark"))]
    {
        assert_eq!(problems, json!([]), "WCAG AA contrast in {scheme} mode");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn charts_can_be_read_with_the_keyboard() {
    let mut browser = opened(&ledgers::busy());
    browser.eval("document.querySelector('[data-readout]').focus()");
    let readout = "document.querySelector('.readout').textContent";
    let rest = browser.eval(readout);
    browser.press("ArrowRight");
    let first = browser.eval(readout);
    browser.press("ArrowRight");
    let second = browser.eval(readout);
    assert!(rest != first && first != second, "{rest} {first} {second}");
    let titles = browser
        .eval("[...document.querySelectorAll('.hit title')].slice(0, 2).map(t => t.textContent)");
    assert_eq!(titles, json!([first, second]));
    browser.press("Tab");
    assert_eq!(browser.eval(readout), rest, "leaving it puts it back");
}

#[test]
fn without_a_script_every_figure_is_still_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "busy", &ledgers::busy());
    let mut browser = Browser::start();
    browser.resize(1280, 900);
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&path);
    assert!(numbers(&mut browser, 4).len() > 10);
    let controls = "[...document.querySelectorAll('button, .tools, .keys')].filter(e => e.offsetParent).length";
    assert_eq!(browser.eval(controls), json!(0), "no control that does nothing");
}

/// Text whose contrast with what is behind it is below 4.5 (3 for large text).
fn contrast(browser: &mut Browser, scheme: &str) -> Value {
    browser.emulate("", scheme);
    browser.eval(include_str!("browser/contrast.js"))
}
