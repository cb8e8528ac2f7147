//! The commands of docs/vision.md, with the addresses of the test in place of the usual ones.

use std::process::{Child, Command, Stdio};

use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, model_folder, setup_root};
use crate::page::{Line, commands};

/// A box, a broker and a web server with the picture of a camera, which the commands of the page expect.
struct Place {
    broker: Broker,
    daemon: Option<TestDaemon>,
    /// The programs that the page leaves in the background.
    background: Vec<Child>,
    web_port: u16,
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in &mut self.background {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Place {
    fn start() -> Self {
        let web_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let root = TestRoot::new().models(&["coco_detector", "face_detector"]);
        Self { broker: Broker::new(), daemon: Some(root.start()), background: Vec::new(), web_port }
    }

    fn daemon(&self) -> &TestDaemon {
        self.daemon.as_ref().unwrap()
    }

    /// Runs a line of the page, and returns its output.
    fn run(&mut self, line: &Line) -> String {
        let folder = self.daemon().root.folder.path().to_owned();
        let models = model_folder("coco_detector").parent().unwrap().display().to_string();
        let text = [
            ("/etc/ledge/ledge.toml", folder.join("ledge.toml").display().to_string()),
            ("/usr/share/ledge/models", models),
            ("127.0.0.1:8000", self.daemon().address.to_string()),
            ("mqtt://127.0.0.1:1883", self.broker.url()),
            ("127.0.0.1:8080", format!("127.0.0.1:{}", self.web_port)),
            (" 8080 &", format!(" {} &", self.web_port)),
            ("mosquitto_sub ", format!("mosquitto_sub -p {} ", self.broker.port)),
        ]
        .into_iter()
        .fold(line.text.clone(), |text, (usual, here)| text.replace(usual, &here));

        if text.starts_with("apt install ") {
            return String::new();
        }
        if let Some(background) = text.strip_suffix(" &") {
            let mut words = background.split_whitespace();
            let mut command = Command::new(words.next().unwrap());
            let child = command.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            self.background.push(child);
            return String::new();
        }
        if text == "ledge config check && systemctl restart ledge" {
            let root = self.daemon.take().unwrap().kill();
            let checked = root.command(&["config", "check"]).output().unwrap();
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
            self.daemon = Some(root.start());
            return String::new();
        }
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &format!("set -e\n{text}")]).current_dir(&folder).output().unwrap();
        let said = [&*output.stdout, &*output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{text}: {said}");
        said
    }
}

#[test]
fn the_page_on_pictures_does_what_it_says() {
    const PAGE: &str = include_str!("../../docs/vision.md");
    assert!(setup_root().join("models/coco_detector").exists(), "`make setup-test` makes the models");
    let mut place = Place::start();
    let mut all = |heading: &str| {
        let fences = commands(PAGE, heading);
        fences.iter().flatten().map(|line| place.run(line)).collect::<Vec<_>>()
    };
    let first = all("\n## From nothing to a sensor\n").concat();
    assert!(first.contains(r#""zones":{"everywhere":{"cow":3,"person":0}}"#), "{first}");
    assert!(first.contains("\"unique_id\""), "{first}");
    let second = all("\n## One picture\n").concat();
    assert!(second.contains(r#""detections":[{"label":"cow","score":0.80"#), "{second}");
    let third = all("\n## Software that speaks DeepStack\n").concat();
    assert!(third.contains(r#"{"success":true,"predictions":[{"label":"cow","confidence":0.80"#), "{third}");
    let drawn = std::fs::read(place.daemon().root.folder.path().join("cows-found.jpg")).unwrap();
    assert!(drawn.starts_with(b"\xFF\xD8\xFF"));
}
