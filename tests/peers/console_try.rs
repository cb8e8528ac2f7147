//! Ways to try a model in a real Chromium besides a chosen file: the camera of the device, a file that is dropped; and
//! the button that copies a command.

use std::path::Path;

use serde_json::json;

use crate::browser::Browser;
use crate::daemon::{TestDaemon, TestRoot};

fn detector() -> TestDaemon {
    TestRoot::closed().models(&["coco_detector"]).start()
}

fn open(browser: &Browser, daemon: &TestDaemon) {
    browser.go(&format!("http://{}/#try/coco_detector", daemon.address));
    browser.wait_for("document.querySelector('#try-file')");
}

#[test]
fn the_camera_of_the_device_takes_a_photograph_and_is_off_when_the_page_is_left() {
    let daemon = detector();
    let browser = Browser::with(&["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]);
    open(&browser, &daemon);
    browser.click(".drop + div button");
    browser.wait_for("document.querySelector('.camera button.primary:not(:disabled)')");
    browser.click(".camera button.primary");
    // The picture of the camera, drawn next to its answer.
    browser.wait_for("document.querySelector('.picture img')?.naturalWidth > 100");
    assert!(browser.text(".result").contains("compute"), "{}", browser.text(".result"));
    assert!(browser.text(".commands").contains("camera.jpg"), "{}", browser.text(".commands"));

    browser.value("window.track = document.querySelector('.camera video').srcObject.getTracks()[0]");
    assert_eq!(browser.value("track.readyState"), json!("live"));
    browser.click("#to-models");
    browser.wait_for("track.readyState === 'ended'");
    browser.click("#to-try");
    browser.wait_for("document.querySelector('#try .drop').checkVisibility()");
    assert_eq!(browser.value("document.querySelectorAll('#try video').length"), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_dropped_file_is_tried_and_one_that_misses_the_place_leaves_the_page_alone() {
    let daemon = detector();
    let browser = Browser::start();
    open(&browser, &daemon);
    let cows = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/photos/cows.jpg");
    let drop = |selector: &str| browser.drop_file(selector, &cows);
    // Without this, the browser shows the file in place of the page.
    let missed = "(() => { const dataTransfer = new DataTransfer(); dataTransfer.items.add(new File(['x'], 'x.txt')); \
                  const event = new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer }); \
                  return !document.querySelector('#try-title').dispatchEvent(event); })()";
    assert_eq!(browser.value(missed), json!(true));
    drop("#try-title");
    assert_eq!(browser.text(".result"), "The answer appears here.");
    drop(".drop");
    browser.wait_for("document.querySelectorAll('.mark .box').length > 2");
    assert!(browser.text(".result").contains("cow"), "{}", browser.text(".result"));
    assert!(browser.text(".command pre").contains("@cows.jpg"), "{}", browser.text(".command pre"));
    assert_eq!(browser.value("document.querySelector('.drop').classList.contains('over-it')"), json!(false));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_address_names_the_model_and_the_form_has_its_own_columns() {
    let daemon = TestRoot::closed().models(&["add_sub", "bike_demand", "wine_mlp"]).start();
    let browser = Browser::start();
    let origin = format!("http://{}", daemon.address);
    browser.go(&format!("{origin}/#try"));
    browser.wait_for("document.querySelector('#request')");
    assert_eq!(browser.value("location.hash"), json!("#try/add_sub"));

    let choose = "const one = document.querySelector('#try-model'); one.value = 'wine_mlp'; one.dispatchEvent(new Event('change'))";
    browser.run(choose);
    browser.wait_for("document.querySelector('#rows')");
    assert_eq!(browser.value("location.hash"), json!("#try/wine_mlp"));
    let columns = browser.value("document.querySelector('#rows').placeholder");
    let columns = columns.as_str().unwrap();
    assert!(columns.starts_with("alcohol,malic_acid,") && columns.ends_with(",proline"), "{columns}");

    browser.run("history.back()");
    browser.wait_for("document.querySelector('#try-model').value === 'add_sub' && document.querySelector('#request')");
    browser.go(&format!("{origin}/#try/wine_mlp2"));
    browser.wait_for("document.querySelector('#try .error')");
    let told = browser.text("#try .error");
    assert!(told.contains("No model “wine_mlp2” is ready"), "{told}");
    assert_eq!(browser.value("document.querySelector('#try-model').value"), json!(""));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_call_can_be_cancelled_and_an_error_is_not_followed_by_commands() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#try/add_sub", daemon.address));
    browser.wait_for("document.querySelector('#request')");
    // The service answers no longer: the call waits.
    daemon.signal("STOP");
    browser.click(".input button.primary");
    browser.wait_for("document.querySelector('.result')?.innerText.includes('1 s')");
    browser.click(".result button[data-action=cancel]");
    let told = browser.text(".result");
    assert!(told.starts_with("Cancelled after "), "{told}");
    daemon.signal("CONT");

    browser.run("document.querySelector('#request').value = '{\"inputs\": []}'");
    browser.click(".input button.primary");
    browser.wait_for("document.querySelector('.result .error')");
    assert_eq!(browser.value("document.querySelectorAll('.command').length"), json!(0));

    browser.run("location.reload()");
    browser.wait_for("document.querySelector('#request')?.value.includes('INPUT0')");
    browser.click(".input button.primary");
    browser.wait_for("document.querySelector('.command')");
    // The box has no broker.
    let names = browser.value("[...document.querySelectorAll('.command h4')].map((one) => one.innerText)");
    assert_eq!(names, json!(["curl", "Python"]));
}

#[test]
fn the_copy_button_copies_the_command() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let browser = Browser::start();
    let origin = format!("http://{}", daemon.address);
    let permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"];
    browser.devtools("Browser.grantPermissions", &json!({"origin": origin, "permissions": permissions}));
    browser.go(&format!("{origin}/#try/add_sub"));
    browser.wait_for("document.querySelector('#request')");
    browser.click(".input button.primary");
    browser.wait_for("document.querySelector('.command button.copy')");
    browser.click(".command button.copy");
    browser.wait_for("document.querySelector('.command button.copy').innerText === 'Copied'");
    let copied = browser.promised("navigator.clipboard.readText()");
    assert_eq!(copied, browser.value("document.querySelector('.command pre').textContent"));
    assert!(copied.as_str().unwrap().starts_with("curl "), "{copied}");
}
