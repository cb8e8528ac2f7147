//! Updates in the console, in a real Chromium: a real repository and its rollouts.

use crate::access_mqtt::key;
use crate::browser::Browser;
use crate::daemon::{TestRoot, model_folder};
use crate::platform::{Callers, Fleet, SHAPES, look, shapes, subject, until};

/// Gives the page a key.
fn use_key(browser: &Browser, key: &str) {
    browser.click("#use-key");
    browser.type_into("#key-field", key);
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('#caller').innerText.startsWith('key:')");
}

#[test]
fn a_rollout_passes_its_stages_before_the_eyes_and_goes_back_at_a_press() {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better"), (3, "release_bad_accuracy")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let root = fleet.enrol(TestRoot::new()).set("access.loopback=[\"viewer\",\"infer\",\"operator\"]");
    let daemon = root.start();
    daemon.wait_for_event("update.committed");

    let browser = Browser::start();
    browser.go(&format!("http://{}/#updates", daemon.address));
    browser.wait_for("document.querySelector('#updates article')");
    let told = browser.text("#updates article");
    assert!(told.contains("Version 1 is live") && told.contains("rollout r-1 passed every stage"), "{told}");
    assert!(browser.text("#updates .card").contains(&fleet.nginx.url()), "{}", browser.text("#updates .card"));
    // Each stage that is drawn as the one of now.
    browser.value(
        "(window.stages = [], new MutationObserver(() => { const now = document.querySelector('.steps .now')?.firstChild.data; \
         if (now && now !== stages.at(-1)) stages.push(now); }).observe(document.querySelector('#updates'), \
         {childList: true, subtree: true}), 0)",
    );

    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    let slow = [
        "--shadow",
        "share=1,min_s=12,min_requests=20,max_s=60",
        "--canary",
        "share=0.5,min_s=7,min_requests=20,max_s=60",
    ];
    fleet.platform.start(
        "r-2",
        "models/shapes/2",
        &[&slow[..], &["--soak", "min_s=7,min_requests=20,max_s=60"]].concat(),
    );
    look(&daemon);
    browser.wait_for("document.querySelector('.steps .now')?.innerText === 'canary'");
    let told = browser.text("#updates article");
    assert!(
        told.contains("version 2 on trial") && told.contains("rollout r-2") && told.contains("Version 1 is live"),
        "{told}"
    );
    browser.wait_for("document.querySelector('#updates article').innerText.includes('rollout r-2 passed every stage')");
    let stages = browser.value("stages");
    let stages: Vec<_> = stages.as_array().unwrap().iter().filter_map(|stage| stage.as_str()).collect();
    assert!(stages.ends_with(&["shadow", "canary", "active"]), "{stages:?}");

    // Nothing happens before it is confirmed.
    browser.click("[data-action='models/shapes roll back']");
    let asked = browser.text("#confirm-dialog");
    assert!(asked.contains("version 1 answers") && asked.contains("not tried again"), "{asked}");
    browser.click("#confirm-dialog button[value=no]");
    assert_eq!(subject(&daemon, "models/shapes")["version"], 2);
    browser.click("[data-action='models/shapes roll back']");
    browser.click("#confirm-dialog button[value=yes]");
    browser.wait_for("document.querySelector('#updates article').innerText.includes('Version 1 is live')");
    until(&daemon, |told| told["version"] == 1);
    browser.wait_for("document.querySelector('#updates article').innerText.includes('(operator)')");
    callers.stop_unharmed();

    // A release that fails its gate shows where and why.
    fleet.platform.start("r-3", "models/shapes/3", &["--gate", "golden_min=0.95"]);
    browser.click("[data-action='for updates check now']");
    browser.click("#confirm-dialog button[value=yes]");
    browser.wait_for("document.querySelector('.steps .failed')?.firstChild.data === 'verified'");
    let told = browser.text("#updates article");
    assert!(
        told.contains("rollout r-3 was rolled back in the stage verified (golden)") && told.contains("7 of 10"),
        "{told}"
    );

    browser.click("[data-action='models/shapes pin']");
    browser.click("#confirm-dialog button[value=yes]");
    browser.wait_for("document.querySelector('[data-action=\"models/shapes unpin\"]')");
    assert_eq!(subject(&daemon, "models/shapes")["pinned"], true);
    browser.click("#updates details summary");
    assert!(browser.text("#updates details table").contains("timestamp"), "{}", browser.text("#updates details"));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_viewer_sees_updates_and_orders_nothing() {
    let fleet = Fleet::new("");
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let root = fleet.enrol(TestRoot::closed());
    let viewer = key(&root, &["desk", "--role", "viewer"]);
    let daemon = root.start();
    daemon.wait_for_event("update.committed");
    let browser = Browser::start();
    browser.go(&format!("http://{}/#updates", daemon.address));
    use_key(&browser, &viewer);
    browser.wait_for("document.querySelector('#updates article')");
    let buttons =
        browser.value("[...document.querySelectorAll('#updates button')].map((one) => [one.disabled, one.title])");
    let buttons = buttons.as_array().unwrap();
    assert_eq!(buttons.len(), 3, "{buttons:?}");
    for button in buttons {
        assert!(button[0] == true && button[1].as_str().unwrap().contains("operator or admin"), "{button}");
    }
}

#[test]
fn a_box_without_a_platform_says_how_to_get_updates() {
    let (daemon, browser) = (TestRoot::closed().start(), Browser::start());
    browser.go(&format!("http://{}/#updates", daemon.address));
    browser.wait_for("document.querySelector('#updates .notice')");
    assert!(browser.text("#updates .notice").contains("updates.repository"));
}
