//! The cameras of the console in a real Chromium: who sees which picture, and a zone from the mouse to the counts.

use std::sync::Arc;

use ledge::cameras::zones::Polygon;
use serde_json::{Value, json};

use crate::access_mqtt::key;
use crate::boxes::wait_until;
use crate::browser::Browser;
use crate::camera_server::{CameraServer, Login};
use crate::daemon::{TestRoot, data, write};

const ARROW_DOWN: char = '\u{e015}';
const DELETE: char = '\u{e017}';

/// A picture of a person, who reaches its lower edge.
fn astronaut() -> Arc<[u8]> {
    data("photos/astronaut.jpg").into()
}

fn config(server: &CameraServer) -> String {
    let url = server.url("room");
    format!("[[camera]]\nname = \"room\"\nurl = {url:?}\ninterval_ms = 500\nlabels = [\"person\", \"cat\"]\n")
}

/// The place of the face in the picture: left, top, width, height.
const FACE: [u32; 4] = [115, 55, 50, 50];

/// The sum of the differences between neighbours in the face.
fn roughness(picture: &image::RgbImage) -> u32 {
    let [left, top, width, height] = FACE;
    let at = |x, y| u32::from(picture.get_pixel(x, y).0[0]);
    (left..left + width)
        .flat_map(|x| (top..top + height).map(move |y| (x, y)))
        .map(|(x, y)| at(x, y).abs_diff(at(x + 1, y)))
        .sum()
}

/// The same of the picture on the page.
fn shown_roughness(browser: &Browser) -> u64 {
    let [left, top, width, height] = FACE;
    let script = format!(
        "(() => {{ const image = document.querySelector('.still img'); const canvas = document.createElement('canvas'); \
         [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight]; \
         const context = canvas.getContext('2d'); context.drawImage(image, 0, 0); \
         const {{data}} = context.getImageData({left}, {top}, {width} + 1, {height}); let sum = 0; \
         for (let y = 0; y < {height}; y += 1) for (let x = 0; x < {width}; x += 1) {{ \
         const at = 4 * (y * ({width} + 1) + x); sum += Math.abs(data[at] - data[at + 4]); }} return sum; }})()"
    );
    browser.value(&script).as_u64().unwrap()
}

#[test]
fn a_picture_is_for_its_role_and_blurred_and_a_zone_goes_from_the_mouse_to_the_counts() {
    let server = CameraServer::start(Login::None);
    server.show("room", [astronaut()]);
    let root = TestRoot::closed().models(&["coco_detector", "face_detector"]);
    write(&root.folder.path().join("ledge.toml"), config(&server).as_bytes());
    let guard = key(&root, &["guard", "--role", "camera-viewer"]);
    let daemon = root.start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#cameras", daemon.address));
    browser.wait_for("document.querySelector('#cameras .badge.ok')");
    // A program of this machine sees the counts, and no picture.
    browser.wait_for("document.querySelector('#cameras .events')");
    let card = browser.text("#cameras article");
    assert!(card.contains("person 1") && card.contains("need the role camera-viewer"), "{card}");
    assert_eq!(browser.value("document.querySelectorAll('#cameras img').length"), json!(0));

    browser.click("#use-key");
    browser.type_into("#key-field", &guard);
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('.still img')?.naturalWidth");
    let sent = image::load_from_memory(&astronaut()).unwrap().to_rgb8();
    let (shown, sent) = (shown_roughness(&browser), u64::from(roughness(&sent)));
    assert!(shown * 2 < sent, "the face: {shown} of {sent}");
    // Nothing that came was the picture as the camera gave it.
    let requests =
        "performance.getEntriesByType('resource').map((one) => [new URL(one.name).pathname, one.encodedBodySize])";
    let requests = browser.value(requests);
    let is_picture = |one: &Value| one[0] == "/cameras/room/picture" && one[1].as_u64() > Some(5000);
    assert!(requests.as_array().unwrap().iter().any(is_picture), "{requests}");
    assert!(requests.as_array().unwrap().iter().all(|one| one[1] != json!(astronaut().len())), "{requests}");

    // Corners with crossing edges, in the words of `ledge config check`.
    browser.click("#cameras article a");
    browser.wait_for("document.querySelector('.canvas img')");
    let click = |place| browser.point_along("mouse", ".shape", &[place]);
    let told = || browser.text("#cameras [role=status]");
    let corners = [(0.2, 0.6), (0.8, 0.6), (0.2, 0.9), (0.8, 0.9)];
    corners.into_iter().for_each(click);
    let crossing: Result<Polygon, _> = serde_json::from_value(json!(corners));
    assert_eq!(told(), crossing.unwrap_err().to_string());

    // Three with the mouse, the fourth with a finger; then to the lower edge of the picture with both, and a fifth
    // away.
    browser.value("[...document.querySelectorAll('#cameras .input button')].at(-1).click()");
    [(0.2, 0.6), (0.8, 0.6), (0.8, 0.9)].into_iter().for_each(click);
    browser.point_along("touch", ".shape", &[(0.2, 0.9)]);
    browser.press_key(ARROW_DOWN, 15);
    browser.point_along("mouse", ".shape", &[(0.8, 0.9), (0.85, 0.95), (0.85, 1.02)]);
    assert!(told().contains("Click on the first corner"), "{}", told());
    click((0.2, 0.6));
    browser.wait_for("document.querySelector('.shape .whole')");
    click((0.5, 0.8));
    let count = || browser.value("document.querySelectorAll('.corner').length");
    assert_eq!(count(), json!(4), "the zone is closed");
    browser.value("document.querySelector('#cameras .input button').click()");
    assert_eq!(count(), json!(5));
    browser.press_key(DELETE, 1);
    assert_eq!(count(), json!(4));

    for (name, reason) in [("everywhere", "is the whole picture"), ("", "Give the zone a name"), ("a b", "A-Z a-z 0-9")]
    {
        browser.value("document.querySelector('#zone-name').value = ''");
        browser.type_into("#zone-name", &format!("{name} "));
        assert!(told().contains(reason), "{}", told());
    }
    browser.value("document.querySelector('#zone-name').value = ''");
    browser.type_into("#zone-name", "desk");
    browser.type_into("#zone-labels", "dog");
    assert_eq!(told(), "\"dog\" is not among the labels of the camera");
    browser.value("document.querySelector('#zone-labels').value = ''");
    browser.type_into("#zone-labels", "person");
    browser.wait_for("document.querySelector('#cameras .command pre')");
    let lines = browser.text("#cameras .command pre");
    let zone: toml::Table = toml::from_str(&lines).unwrap();
    let points: Vec<[f64; 2]> = zone["camera"]["zones"][0]["points"].clone().try_into().unwrap();
    for ([x, y], (near_x, near_y)) in points.iter().zip([(0.2, 0.6), (0.8, 0.6), (0.85, 1.0), (0.2, 1.0)]) {
        assert!((x - near_x).abs() < 0.005 && (y - near_y).abs() < 0.005, "{lines}");
    }
    assert_eq!(browser.complaints(), [""; 0]);

    // The lines where they belong.
    let root = daemon.kill();
    write(&root.folder.path().join("ledge.toml"), format!("{}{lines}\n", config(&server)).as_bytes());
    let checked = root.command(&["config", "check"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let daemon = root.start();
    let counts = || -> Value { daemon.client().get("/cameras").json()["cameras"][0]["counts"].clone() };
    wait_until("the person in the zone", || counts()["desk"]["person"] == 1);
    assert_eq!(counts(), json!({"everywhere": {"person": 1, "cat": 0}, "desk": {"person": 1}}));
}

#[test]
fn a_camera_that_is_away_and_a_box_without_cameras_say_so() {
    let server = CameraServer::start(Login::None);
    let root = TestRoot::new();
    write(&root.folder.path().join("ledge.toml"), config(&server).as_bytes());
    let daemon = root.start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#cameras", daemon.address));
    browser.wait_for("document.querySelector('#cameras .badge.fail')");
    let card = browser.text("#cameras article");
    assert!(card.contains("away") && card.contains("status 404") && card.contains("No picture has come"), "{card}");
    assert!(browser.text("#cameras").contains("Nothing has appeared"));

    let empty = TestRoot::closed().start();
    browser.go(&format!("http://{}/#cameras", empty.address));
    browser.wait_for("document.querySelector('#cameras .command')");
    let lines: toml::Table = toml::from_str(&browser.text("#cameras .command pre")).unwrap();
    assert_eq!(lines["camera"][0]["name"].as_str(), Some("yard"));
    assert_eq!(browser.complaints(), [""; 0]);
}
