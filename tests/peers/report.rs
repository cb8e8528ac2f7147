//! The report of a month in Chromium, on A4.

use ledge::audit_event::tag::TagKey;
use serde_json::json;

use crate::browser::Browser;
use crate::simulated_month::{add_own_figures, simulated_month};

/// A4 in CSS pixels between the margins of the page: 182 mm.
const WIDTH_PX: u64 = 688;

#[test]
fn a_report_prints_on_a4_and_nothing_reaches_over_the_edge() {
    let written = simulated_month(&TagKey::new(20_000, [5; 32]));
    add_own_figures(written.root.folder.path());
    let path = written.root.folder.path().join("report.html");
    crate::tools::run(&mut written.root.command(&["report", "--month", "2026-11", "--out", path.to_str().unwrap()]));

    let browser = Browser::start();
    browser.go(&format!("file://{}", path.display()));
    browser.devtools("Emulation.setEmulatedMedia", &json!({"media": "print"}));
    let metrics = json!({"width": WIDTH_PX, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
    browser.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    let wider = browser.value(
        "[...document.querySelectorAll('body *')].filter((of) => of.scrollWidth > of.clientWidth + 1 && of.clientWidth > 0)
         .map((of) => of.tagName + ' ' + of.textContent.slice(0, 60))",
    );
    assert_eq!(wider, json!([]));
    let page = browser.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    assert!(page[0].as_f64().unwrap() <= page[1].as_f64().unwrap(), "{page}");
    let loads = browser.value("performance.getEntriesByType('resource').length + document.scripts.length");
    assert_eq!(loads, json!(0), "nothing is loaded, and nothing runs");

    let printed = browser.devtools("Page.printToPDF", &json!({"preferCSSPageSize": true, "printBackground": true}));
    let pdf =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, printed["data"].as_str().unwrap()).unwrap();
    if let Some(folder) = std::env::var_os("LEDGE_TEST_KEEP") {
        crate::daemon::write(&std::path::Path::new(&folder).join("report.pdf"), &pdf);
    }
    let text = String::from_utf8_lossy(&pdf);
    let pages = text.matches("/Type /Page\n").count();
    assert!((4..=30).contains(&pages), "{pages} pages");
    // 210 mm and 297 mm in points.
    let boxes: Vec<&str> = text.split("/MediaBox [").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    assert!(boxes.len() >= pages.min(1), "no size of a page");
    for size in boxes {
        let numbers: Vec<f64> = size.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert!((numbers[2] - 595.3).abs() < 1.0 && (numbers[3] - 841.9).abs() < 1.0, "{size}");
    }
}
