//! The console for everybody: no section has a fault that axe-core knows, at the widths of a telephone and of a desk,
//! light and dark.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::daemon::{TestRoot, setup_root};

const SECTIONS: [&str; 9] = ["now", "try", "models", "cameras", "features", "jobs", "updates", "audit", "keys"];

const VIEWS: &str = r#"
[[entity]]
name = "driver"
join_key = "driver_id"
value_type = "Int64"

[[feature_view]]
name = "driver_stats"
entities = ["driver"]
source = { name = "driver_push" }
schema = [{ name = "trips", dtype = "Int64" }]
"#;

/// The script of axe-core.
pub fn axe() -> String {
    let lib = setup_root().join("peers/axe/lib");
    let pythons = std::fs::read_dir(&lib).into_iter().flatten().map(|entry| entry.unwrap().path());
    let script = pythons.map(|python| python.join("site-packages/axe_playwright_python/axe.min.js"));
    let script = script.into_iter().find_map(|file| std::fs::read_to_string(file).ok());
    script.unwrap_or_else(|| panic!("axe-core is missing in {}: `make setup-axe` gets it", lib.display()))
}

/// The faults that axe-core finds in the page as it is, each with the first elements that have it.
#[track_caller]
pub fn faults(browser: &Browser) -> Vec<String> {
    let found = browser.promised("axe.run(document)");
    let violations = found["violations"].as_array().unwrap_or_else(|| panic!("{found}"));
    let places = |violation: &Value| {
        let nodes = violation["nodes"].as_array().unwrap().iter().take(3);
        nodes.map(|node| node["html"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>().join(" ")
    };
    violations.iter().map(|one| format!("{}: {}", one["id"].as_str().unwrap_or_default(), places(one))).collect()
}

#[test]
fn no_section_has_a_fault_that_keeps_people_out() {
    let root = TestRoot::new().models(&["add_sub", "broken_cut", "coco_detector"]).views(VIEWS);
    let daemon = root.set("camera=[{name=\"door\", model=\"coco_detector\"}]").start();
    let browser = Browser::start();
    let (axe, mut found) = (axe(), Vec::new());
    browser.go(&format!("http://{}/", daemon.address));
    browser.wait_for("document.querySelector('.findings h2')");
    browser.run(&axe);

    for (width, height) in [(1280, 900), (390, 844)] {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        for scheme in ["light", "dark"] {
            let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
            browser.devtools("Emulation.setEmulatedMedia", &media);
            for section in SECTIONS {
                browser.click(&format!("#to-{section}"));
                browser.wait_for(&format!("!document.getElementById('{section}').hidden"));
                browser.wait_for(&format!("document.querySelector('#{section} h1')"));
                // The calls of the section are answered.
                browser.promised("new Promise((done) => requestIdleCallback(done, {timeout: 1000}))");
                let wide =
                    browser.value("document.documentElement.scrollWidth - innerWidth").as_i64().unwrap_or_default();
                let named = |fault: String| format!("{section}, {width} px, {scheme}: {fault}");
                found.extend(faults(&browser).into_iter().map(named));
                if wide > 0 {
                    found.push(named(format!("{wide} px too wide")));
                }
            }
        }
    }
    assert_eq!(found, [""; 0]);

    browser.run("document.querySelector('main').append(new Image())");
    let missed = faults(&browser);
    assert!(
        missed.iter().any(|fault| fault.starts_with("image-alt")),
        "axe-core finds no fault that is there: {missed:?}"
    );
}
