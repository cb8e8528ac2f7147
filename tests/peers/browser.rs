//! A real Chromium, driven by the W3C WebDriver protocol: HTTP and JSON, to `chromedriver`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::tools::path_of;

/// A page that does not get there within this has a fault.
const LIMIT: Duration = Duration::from_mins(1);

/// The member of an element in the protocol (W3C WebDriver, 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window, which ends when it is dropped.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts it.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with more arguments.
    pub fn with(more: &[&str]) -> Self {
        let (driver, address) = driver();
        let mut browser = Self { driver, address, session: String::new() };
        // The sandbox needs user namespaces, which root in a container does not have.
        let own =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"];
        let arguments = [&own, more].concat();
        let options = json!({"binary": path_of("chromium"), "args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let opened = browser.ask("POST", "/session", &wanted);
        opened["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        browser
    }

    /// A command of the protocol; its value.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("content-type", "application/json")];
        let answer = Client::tcp(self.address).request(method, path, &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()["value"].clone()
    }

    #[track_caller]
    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{path}", self.session), body)
    }

    pub fn go(&self, url: &str) {
        self.command("url", &json!({"url": url}));
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn value(&self, expression: &str) -> Value {
        self.command("execute/sync", &json!({"script": format!("return {expression};"), "args": []}))
    }

    /// The value of a promise in the page.
    #[track_caller]
    pub fn promised(&self, promise: &str) -> Value {
        let script =
            format!("const done = arguments[0]; ({promise}).then(done, (error) => done(`error: ${{error}}`));");
        self.command("execute/async", &json!({"script": script, "args": []}))
    }

    /// Runs a script in the page.
    #[track_caller]
    pub fn run(&self, script: &str) {
        self.command("execute/sync", &json!({"script": script, "args": []}));
    }

    /// A command of Chromium's own protocol, CDP.
    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// Drops a file or a folder of this machine on the middle of an element.
    #[track_caller]
    pub fn drop_file(&self, selector: &str, path: &Path) {
        let place = self.point(selector, (0.5, 0.5));
        let data = json!({"items": [], "files": [path], "dragOperationsMask": 1});
        for kind in ["dragEnter", "dragOver", "drop"] {
            let event = json!({"type": kind, "x": place["x"], "y": place["y"], "data": data});
            self.devtools("Input.dispatchDragEvent", &event);
        }
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub fn wait_for(&self, expression: &str) {
        let end = Instant::now() + LIMIT;
        while self.value(&format!("Boolean({expression})")) != json!(true) {
            assert!(Instant::now() < end, "never {expression} in {}; {:?}", self.text("body"), self.complaints());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The text of the first element that fits a selector, as a person sees it.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({}).innerText", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn element(&self, selector: &str) -> String {
        let found = self.command("element", &json!({"using": "css selector", "value": selector}));
        format!("element/{}", found[ELEMENT].as_str().unwrap())
    }

    #[track_caller]
    pub fn click(&self, selector: &str) {
        self.command(&format!("{}/click", self.element(selector)), &json!({}));
    }

    /// Clicks twice on the middle of an element, like a person, even if another element is there at the second click.
    #[track_caller]
    pub fn double_click(&self, selector: &str) {
        let mut steps = vec![self.point(selector, (0.5, 0.5))];
        for kind in ["pointerDown", "pointerUp", "pointerDown", "pointerUp"] {
            steps.push(json!({"type": kind, "button": 0}));
            if kind == "pointerUp" {
                // A slow double click: the box has answered the first one.
                steps.push(json!({"type": "pause", "duration": 120}));
            }
        }
        let source =
            json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps});
        self.command("actions", &json!({"actions": [source]}));
    }

    /// Opens another tab, and goes on in it. Returns its handle.
    #[track_caller]
    pub fn new_tab(&self) -> String {
        let handle = self.command("window/new", &json!({"type": "tab"}))["handle"].as_str().unwrap().to_owned();
        self.switch_to(&handle);
        handle
    }

    /// Goes on in another tab.
    #[track_caller]
    pub fn switch_to(&self, handle: &str) {
        self.command("window", &json!({"handle": handle}));
    }

    /// Types a text; for an input of files it is the path of one.
    #[track_caller]
    pub fn type_into(&self, selector: &str, text: &str) {
        self.command(&format!("{}/value", self.element(selector)), &json!({"text": text}));
    }

    /// The place in the window of a place in an element, which is given as shares of its width and height.
    #[track_caller]
    fn point(&self, selector: &str, (x, y): (f64, f64)) -> Value {
        let rectangle = format!(
            "(() => {{ const one = document.querySelector({}); one.scrollIntoView({{block: 'center'}}); \
             return one.getBoundingClientRect().toJSON(); }})()",
            json!(selector)
        );
        let rectangle = self.value(&rectangle);
        let at = |start: &str, side: &str, share: f64| {
            (rectangle[start].as_f64().unwrap() + rectangle[side].as_f64().unwrap() * share).round()
        };
        json!({"type": "pointerMove", "duration": 0, "x": at("x", "width", x), "y": at("y", "height", y)})
    }

    /// Presses a pointer, `mouse` or `touch`, at a place in an element, moves it along the others, and lifts it.
    #[track_caller]
    pub fn point_along(&self, pointer: &str, selector: &str, places: &[(f64, f64)]) {
        let mut steps: Vec<_> = places.iter().map(|place| self.point(selector, *place)).collect();
        steps.insert(1, json!({"type": "pointerDown", "button": 0}));
        steps.push(json!({"type": "pointerUp", "button": 0}));
        let source =
            json!({"type": "pointer", "id": pointer, "parameters": {"pointerType": pointer}, "actions": steps});
        self.command("actions", &json!({"actions": [source]}));
    }

    /// Presses and releases a key some times, in what has the focus. A special key is a character of the protocol (W3C
    /// WebDriver, 17.4.2).
    #[track_caller]
    pub fn press_key(&self, key: char, times: usize) {
        let press = ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}));
        let presses: Vec<_> = std::iter::repeat_n(press, times).flatten().collect();
        let source = json!({"type": "key", "id": "keyboard", "actions": presses});
        self.command("actions", &json!({"actions": [source]}));
    }

    /// The complaints of the browser: refused requests, violations of the content security policy, errors of scripts.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({"type": "browser"}));
        let message = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        entries.as_array().map(|all| all.iter().map(message).collect()).unwrap_or_default()
    }
}

/// Starts chromedriver. It ends at once where the port that it was given is taken on IPv6, and is started again then.
fn driver() -> (Child, SocketAddr) {
    for _ in 0..5 {
        let mut driver = Command::new(path_of("chromedriver"))
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, rest) = line.split_once("started successfully on port ")?;
            rest.trim_end_matches('.').parse().ok()
        });
        let Some(port) = port else {
            driver.wait().unwrap();
            continue;
        };
        // Later lines must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        return (driver, ([127, 0, 0, 1], port).into());
    }
    panic!("chromedriver names no port");
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium, which would outlive its driver, also after a test that failed: so nothing here panics.
        let ended = TcpStream::connect(self.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(LIMIT))?;
            let head = format!("DELETE /session/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", self.session);
            stream.write_all(head.as_bytes())?;
            stream.read(&mut [0; 1024])
        });
        if let Err(error) = ended {
            eprintln!("Chromium may still run: {error}");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
