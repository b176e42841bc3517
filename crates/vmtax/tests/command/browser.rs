//! Each kind of page in a real browser: as wide as a desk and as a phone, in both colour schemes, and on paper.

use std::path::Path;

use serde_json::{Value, json};

use crate::captures::unpack;
use crate::check::vmtax;

#[expect(dead_code, reason = "shared with the tests of the report, which use all of it")]
#[path = "../../../report/tests/browser/mod.rs"]
mod driver;

use driver::Browser;

/// A kind of page: its name, the command that makes it, and whether its figures are of an emulated host.
const PAGES: [(&str, &str, bool); 20] = [
    ("report", "report all.perf.data", true),
    ("report of two VMs", "report sched.perf.data", true),
    ("report with profiles", "report td", false),
    ("report of several", "report all.perf.data sched.perf.data", true),
    ("diff", "diff all.perf.data sched.perf.data", true),
    ("diff of counts", "diff plain td --length 10s", false),
    ("explain", "explain sched.perf.data", true),
    ("explain against a base", "explain td --against plain --length 10s", false),
    ("explain of results", "explain results.csv", false),
    ("bench compare", "bench compare results.csv", false),
    ("bench compare of the lab", "bench compare captures/bench-memory/amd-7.3", true),
    ("report of the lab", "report captures/lab-memory/amd-6.12-bounce", true),
    (
        "lab compare",
        "lab compare captures/lab-memory/amd-7.3 captures/lab-memory/amd-7.3-protected",
        true,
    ),
    ("report of traffic", "report captures/lab-network/vhost", true),
    ("bench compare of traffic", "bench compare captures/lab-network/vhost", true),
    ("doctor", "doctor --root root", false),
    ("pages", "doctor --pages --root root", false),
    ("mem scan", "mem scan image", false),
    ("vpmu selftest", "vpmu selftest", false),
    ("lab list", "lab list", false),
];

/// Width of a phone, and of the text on a sheet of A4 with the page's margins.
const PHONE: u32 = 390;
const PAPER: u32 = 703;

/// The recordings and runs of [`PAGES`].
fn inputs(folder: &Path) {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, folder.join(name)).unwrap();
    };
    link(&captures, "captures");
    link(&unpack("amd-nested", "all.perf.data.zst"), "all.perf.data");
    link(&unpack("amd-sched", "sched.perf.data.zst"), "sched.perf.data");
    link(&captures.join("published/s2.csv"), "results.csv");
    std::fs::create_dir(folder.join("root")).unwrap();
    std::fs::write(folder.join("image"), vec![7; 1 << 20]).unwrap();
    for vm in ["plain", "td"] {
        let of = format!("captures/published/s0-{vm}");
        let words = format!(
            "import {of}.txt -o {vm} --isa vmx --host-profile {of}.host.folded --guest-instructions {of}.annotate --stats {of}.pages"
        );
        let output = vmtax(folder, &words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_kind_of_page_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    inputs(folder);
    let mut browser = Browser::start();
    for (name, words, is_emulated) in PAGES {
        let page = made(folder, words);
        let path = folder.join("page.html");
        std::fs::write(&path, page).unwrap();
        browser.emulate("", "light");
        for width in [1280, PHONE] {
            browser.resize(width, 844);
            browser.open(&path);
            fits(&mut browser, name, width);
        }
        assert_eq!(browser.complaints(), [""; 0], "{name}");
        on_a_phone(&mut browser, name, is_emulated);
        browser.emulate("", "dark");
        let unreadable = browser.eval(include_str!("../../../report/tests/browser/contrast.js"));
        assert_eq!(unreadable, json!([]), "{name}: contrast in dark mode");
        on_paper(&mut browser, name);
    }
}

/// Presses all buttons that save charts: of each what would be saved, beside the words that the page shows in the chart.
const SAVED: &str = "(async () => {
  const blobs = [], names = [];
  URL.createObjectURL = (blob) => (blobs.push(blob), 'data:,');
  HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
  for (const list of document.querySelectorAll('details')) list.open = true;
  const press = async (button) => {
    const before = blobs.length;
    button.click();
    while (blobs.length === before) await new Promise((done) => setTimeout(done, 5));
    return blobs[before];
  };
  const all = [];
  for (const chart of document.querySelectorAll('figure, .flame')) {
    const save = chart.querySelector('.save') ?? chart.nextElementSibling;
    const [svg, png] = save.querySelectorAll('button');
    const text = await (await press(svg)).text();
    const drawing = new DOMParser().parseFromString(text, 'image/svg+xml');
    const shown = [...chart.querySelectorAll('text, span, figcaption, b, small')]
      .filter((part) => part.getClientRects().length && !part.children.length && !part.closest('.readout, .save'));
    const words = (parts) => parts.flatMap((part) => part.textContent.split(/\\s+/)).filter(Boolean);
    const bitmap = await createImageBitmap(await press(png));
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
    canvas.drawImage(bitmap, 0, 0);
    const pixels = new Uint32Array(canvas.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer);
    all.push({
      names: names.splice(0),
      text,
      root: drawing.documentElement.tagName,
      size: ['width', 'height'].map((side) => 2 * drawing.documentElement.getAttribute(side)),
      bitmap: [bitmap.width, bitmap.height],
      colours: new Set(pixels).size,
      missing: words(shown).filter((word) => !words([...drawing.querySelectorAll('text')]).includes(word)),
    });
  }
  return all;
})()";

#[test]
fn charts_are_saved_as_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    inputs(folder);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("charts");
    std::fs::create_dir_all(&kept).unwrap();
    let mut browser = Browser::start();
    browser.emulate("", "light");
    browser.resize(1280, 844);
    let mut seen = 0;
    for (name, words, _) in PAGES {
        let path = folder.join("page.html");
        std::fs::write(&path, made(folder, words)).unwrap();
        browser.open(&path);
        let saved = browser.eval(SAVED);
        for (at, chart) in saved.as_array().unwrap().iter().enumerate() {
            let file = kept.join(format!("{}-{at}.svg", name.replace(' ', "-")));
            std::fs::write(file, chart["text"].as_str().unwrap()).unwrap();
            let place = format!("{name}, chart {at}");
            let names: Vec<&str> =
                chart["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert!(names[0].ends_with(&format!("-{}.svg", at + 1)), "{place}: {names:?}");
            assert!(names[1].ends_with(&format!("-{}.png", at + 1)), "{place}: {names:?}");
            assert_eq!(chart["root"], json!("svg"), "{place}");
            assert_eq!(chart["missing"], json!([]), "{place}: words that the picture lacks");
            assert_eq!(chart["bitmap"], chart["size"], "{place}");
            assert!(chart["colours"].as_u64() > Some(2), "{place}: {} colours", chart["colours"]);
            seen += 1;
        }
        assert_eq!(browser.complaints(), [""; 0], "{name}");
    }
    assert!(seen > 20, "{seen} charts");
}

/// The page that a command writes; its verdict may be an exit code.
fn made(folder: &Path, words: &str) -> Vec<u8> {
    let output = vmtax(folder, &format!("{words} --format html"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.starts_with(b"<!DOCTYPE html>"), "{words}: {said}");
    output.stdout
}

fn fits(browser: &mut Browser, name: &str, width: u32) {
    let wide = browser.eval("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(wide <= width.into(), "{name}: {wide} px wide in a window of {width}");
}

/// The answer is at the top and large enough, what qualifies it is said once, and the rest is folded.
fn on_a_phone(browser: &mut Browser, name: &str, is_emulated: bool) {
    let banners = browser.eval("document.querySelectorAll('.emulation').length");
    assert_eq!(banners, json!(u32::from(is_emulated)), "{name}: banners");
    // The verdict of an explanation may be that an emulator's times decide nothing.
    let said =
        browser.eval("(document.body.textContent.match(/do(es)? not reflect/g) ?? []).length");
    let is_once = said.as_u64().unwrap() <= 1 || name.starts_with("explain");
    assert!(is_once, "{name}: emulation is mentioned {said} times");
    let open = browser.eval("document.querySelectorAll('.about[open]').length");
    assert_eq!(open, json!(0), "{name}: what is folded is closed");
    let answer = browser.eval(
        "(() => { const all = document.querySelectorAll('.figure, .verdict, .sentences li, tbody tr');
           const first = [...all].find(e => e.getClientRects().length);
           const box = first?.getBoundingClientRect();
           return first ? [box.bottom, parseFloat(getComputedStyle(first).fontSize), box.right] : null; })()",
    );
    let number = |at: usize| answer[at].as_f64().unwrap_or_else(|| panic!("{name}: no answer"));
    assert!(number(0) < 700.0, "{name}: the answer ends at {} px", number(0));
    assert!(number(1) >= 13.0, "{name}: the answer has letters of {} px", number(1));
    let small = browser.eval(
        "[...document.querySelectorAll('svg text')].filter(e => { const h = e.getBoundingClientRect().height; return h > 0 && h < 9; }).map(e => e.textContent)",
    );
    assert_eq!(small, json!([]), "{name}: words of pictures that are too small");
}

/// Lists are open and nothing is cut off.
fn on_paper(browser: &mut Browser, name: &str) {
    browser.emulate("print", "light");
    browser.resize(PAPER, 1000);
    fits(browser, name, PAPER);
    let ground = browser.eval("getComputedStyle(document.body).backgroundColor");
    assert_eq!(ground, json!("rgb(255, 255, 255)"), "{name}: paper is white");
    let problems = browser.eval(
        "[...document.querySelectorAll('details > :not(summary)')].filter(e => !e.closest('.more') && !e.getBoundingClientRect().height && e.textContent.trim()).map(e => e.className)
           .concat([...document.querySelectorAll('nav, .tools')].filter(e => e.offsetParent).map(e => e.tagName))",
    );
    assert_eq!(problems, json!([]), "{name}: folded or without use on paper");
    let cut: Value = browser.eval(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY !== 'visible').map(e => e.ariaLabel)",
    );
    assert_eq!(cut, json!([]), "{name}: tables that are cut off on paper");
}
