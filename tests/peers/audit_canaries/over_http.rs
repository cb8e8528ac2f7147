//! Canaries in everything that a caller over HTTP can send.

use serde_json::{Value, json};

use super::photograph;
use super::secrets::Canaries;
use crate::client::Response;
use crate::daemon::TestDaemon;

/// A row of the golden input of `wine_mlp`.
pub const WINE: [f64; 13] = [14.37, 1.95, 2.5, 16.8, 113.0, 3.85, 3.49, 0.24, 2.18, 7.8, 0.86, 3.45, 1480.0];

/// Callers of one daemon, each with different names.
pub struct Callers<'a> {
    pub daemon: &'a TestDaemon,
    pub canaries: &'a mut Canaries,
    /// The number of inference calls that were answered.
    pub answered: usize,
}

impl Callers<'_> {
    /// Everything below.
    pub fn ask_everything(&mut self) {
        self.infer();
        self.photographs();
        self.features();
        self.mistakes();
        self.unknown_names();
        self.administer();
        self.over_the_socket();
        self.with_a_wrong_credential();
    }

    fn with_a_wrong_credential(&mut self) {
        for scheme in ["Basic", "Bearer"] {
            let credential = format!("{scheme} {}", self.word(&format!("{scheme} credential")));
            let answer =
                self.daemon.client().request("GET", "/v2/models/wine_mlp", &[("authorization", &credential)], b"");
            assert_eq!(answer.status, 401, "{scheme}: {answer:?}");
        }
    }

    fn word(&mut self, place: &str) -> String {
        self.canaries.word(place)
    }

    /// A request with canaries also in its headers and query.
    #[track_caller]
    fn ask(&mut self, place: &str, method: &str, path: &str, more: &[(&str, &str)], body: &[u8]) -> Response {
        let name = format!("x-{}", self.word(&format!("{place}: name of a header")));
        let mut headers = vec![(name, "1".to_owned())];
        for header in ["user-agent", "x-request-id", "x-forwarded-for", "cookie", "referer", "from"] {
            headers.push((header.to_owned(), self.word(&format!("{place}: {header}"))));
        }
        headers.push(("traceparent".to_owned(), format!("00-{}-01", self.word(&format!("{place}: traceparent")))));
        let all: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(more.iter().copied()).collect();
        if !body.is_empty() {
            self.canaries.content(&format!("{place}: whole body"), body);
        }
        self.daemon.client().request(method, path, &all, body)
    }

    #[track_caller]
    fn post(&mut self, place: &str, path: &str, body: &Value) -> Response {
        self.ask(place, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// A call that must be answered.
    #[track_caller]
    fn call(&mut self, place: &str, model: &str, body: &Value) {
        let answer = self.post(place, &format!("/v2/models/{model}/infer"), body);
        assert_eq!(answer.status, 200, "{place}: {}", String::from_utf8_lossy(&answer.body));
        self.answered += 1;
    }

    fn infer(&mut self) {
        let text = self.word("text: element");
        self.canaries.content("text: tensor", &element(text.as_bytes()));
        let id = self.word("text: id");
        let input = json!({"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [text]});
        self.call("text", "identity_string", &json!({"id": id, "inputs": [input]}));

        let tensor = element(self.word("binary text: element").as_bytes());
        self.binary("binary text", "identity_string", "BYTES", 1, &tensor);
        let tensor = self.canaries.bytes("bytes: elements");
        self.binary("bytes", "identity_uint8", "UINT8", tensor.len(), &tensor);
        let numbers = self.canaries.numbers("binary numbers: elements");
        self.binary("binary numbers", "identity_fp32", "FP32", numbers.len(), bytemuck::cast_slice(&numbers));

        let numbers = self.canaries.numbers("numbers: elements");
        self.canaries.content("numbers: tensor", bytemuck::cast_slice(&numbers));
        let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, numbers.len()], "data": numbers});
        let (name, value) = (self.word("numbers: name of a parameter"), self.word("numbers: parameter"));
        let body = json!({"id": self.word("numbers: id"), "parameters": {name: value}, "inputs": [input]});
        let answer = self.post("numbers with a parameter", "/v2/models/identity_fp32/infer", &body);
        self.answered += usize::from(answer.status == 200);
        let body = json!({"id": self.word("numbers: another id"), "inputs": body["inputs"]});
        self.call("numbers", "identity_fp32", &body);

        let word = self.word("packed: element");
        let input = json!({"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [word]});
        let packed = super::gzip(json!({"inputs": [input]}).to_string().as_bytes());
        let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
        let answer = self.ask("packed", "POST", "/v2/models/identity_string/infer", &headers, &packed);
        assert_eq!(answer.status, 200);
        self.answered += 1;
    }

    /// A tensor behind the JSON.
    fn binary(&mut self, place: &str, model: &str, datatype: &str, length: usize, tensor: &[u8]) {
        self.canaries.content(&format!("{place}: tensor"), tensor);
        let parameters = json!({"binary_data_size": tensor.len()});
        let input = json!({"name": "IN", "datatype": datatype, "shape": [1, length], "parameters": parameters});
        let body = json!({"id": self.word(&format!("{place}: id")), "inputs": [input]}).to_string();
        let header = body.len().to_string();
        let headers = [("inference-header-content-length", header.as_str())];
        let path = format!("/v2/models/{model}/infer");
        let answer = self.ask(place, "POST", &path, &headers, &[body.as_bytes(), tensor].concat());
        assert_eq!(answer.status, 200, "{place}: {}", String::from_utf8_lossy(&answer.body));
        self.answered += 1;
    }

    fn photographs(&mut self) {
        let photograph = photograph(self.canaries, "photograph");
        let name = format!("form-data; filename=\"{}.jpg\"", self.word("photograph: file name"));
        let headers = [("content-type", "image/jpeg"), ("content-disposition", name.as_str())];
        let path = format!("/v2/models/efficientnet_lite0/infer?{0}={0}", self.word("photograph: query"));
        let answer = self.ask("photograph", "POST", &path, &headers, &photograph);
        self.answered += usize::from(answer.status == 200);
        let answer = self.ask("photograph again", "POST", "/v2/models/efficientnet_lite0/infer", &headers, &photograph);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        self.answered += 1;
        // Data that only begins like a photograph.
        let broken = [&photograph[..2000], &self.canaries.bytes("broken photograph: content")].concat();
        let answer = self.ask("broken photograph", "POST", "/v2/models/efficientnet_lite0/infer", &headers, &broken);
        assert_eq!(answer.status, 400);
    }

    fn features(&mut self) {
        let (wine, grower) = (self.word("push: entity"), self.word("push: feature value"));
        let frame = json!({"wine_id": [wine], "measured": [WINE], "grower": [grower], "event_timestamp": ["2026-01-01T00:00:00Z"]});
        let pushed = self.post("push", "/push", &json!({"push_source_name": "lab_push", "df": frame, "to": "online"}));
        assert_eq!(pushed.status, 200, "{}", String::from_utf8_lossy(&pushed.body));
        let request = json!({"features": ["lab:grower", "lab:measured"], "entities": {"wine_id": [wine]}});
        assert_eq!(self.post("online features", "/get-online-features", &request).status, 200);
        self.call("by entity", "wine_mlp", &json!({"entities": {"wine_id": [wine]}}));
        let values = json!({"entities": {"wine_id": [wine]}, "parameters": {"feature_values": true}});
        self.call("by entity with values", "wine_mlp", &values);
        for (place, path, body) in [
            ("unknown entity", "/v2/models/wine_mlp/infer", json!({"entities": {"wine_id": ["CANARY"]}})),
            ("unknown key", "/v2/models/wine_mlp/infer", json!({"entities": {"CANARY": ["CANARY"]}})),
            (
                "unknown feature",
                "/get-online-features",
                json!({"features": ["lab:CANARY"], "entities": {"wine_id": ["CANARY"]}}),
            ),
            (
                "unknown view",
                "/get-online-features",
                json!({"features": ["CANARY:grower"], "entities": {"wine_id": ["x"]}}),
            ),
            (
                "unknown service",
                "/get-online-features",
                json!({"feature_service": "CANARY", "entities": {"wine_id": ["x"]}}),
            ),
            ("unknown source", "/push", json!({"push_source_name": "CANARY", "df": {"wine_id": ["CANARY"]}})),
            (
                "unknown column",
                "/push",
                json!({"push_source_name": "lab_push", "df": {"CANARY": ["CANARY"], "wine_id": ["CANARY"]}}),
            ),
            (
                "wrong value",
                "/push",
                json!({"push_source_name": "lab_push", "df": {"wine_id": ["CANARY"], "measured": ["CANARY"]}}),
            ),
            ("write", "/write-to-online-store", json!({"feature_view_name": "CANARY", "df": {"wine_id": ["CANARY"]}})),
            (
                "materialize",
                "/materialize",
                json!({"start_ts": "CANARY", "end_ts": "CANARY", "feature_views": ["CANARY"]}),
            ),
        ] {
            let filled = body.to_string().replace("CANARY", &self.word(place));
            self.post(place, path, &serde_json::from_str(&filled).unwrap());
        }
    }

    fn mistakes(&mut self) {
        let json = [("content-type", "application/json")];
        for (place, body) in [
            ("no JSON", "CANARY"),
            ("broken JSON", "{\"id\": \"CANARY\", \"inputs\": [{\"name\": \"CANARY\""),
            (
                "unknown input",
                "{\"inputs\": [{\"name\": \"CANARY\", \"datatype\": \"FP32\", \"shape\": [1], \"data\": [1]}]}",
            ),
            (
                "unknown datatype",
                "{\"inputs\": [{\"name\": \"IN\", \"datatype\": \"CANARY\", \"shape\": [1], \"data\": [1]}]}",
            ),
            (
                "wrong data",
                "{\"inputs\": [{\"name\": \"IN\", \"datatype\": \"FP32\", \"shape\": [1, 1], \"data\": [\"CANARY\"]}]}",
            ),
            ("unknown field", "{\"CANARY\": 1, \"inputs\": []}"),
            (
                "unknown output",
                "{\"inputs\": [{\"name\": \"IN\", \"datatype\": \"FP32\", \"shape\": [1, 1], \"data\": [1]}], \"outputs\": [{\"name\": \"CANARY\"}]}",
            ),
        ] {
            let body = body.replace("CANARY", &self.word(place));
            let answer = self.ask(place, "POST", "/v2/models/identity_fp32/infer", &json, body.as_bytes());
            self.answered += usize::from(answer.status == 200);
        }
        let word = self.word("content type");
        self.ask("content type", "POST", "/v2/models/identity_fp32/infer", &[("content-type", &word)], b"{}");
        self.ask("content encoding", "POST", "/v2/models/identity_fp32/infer", &[("content-encoding", &word)], b"{}");
        let timeout = self.word("timeout");
        self.ask("timeout", "POST", "/v2/models/identity_fp32/infer", &[("request-timeout", &timeout)], b"{}");
        let head = format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nbad header {}\r\n\r\n", self.word("no header"));
        let mut client = self.daemon.client();
        client.send(head.as_bytes());
        // It may be answered, or not; then it is closed.
        client.finish();
    }

    fn unknown_names(&mut self) {
        let call = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).to_string();
        for (place, method, path) in [
            ("unknown model", "POST", "/v2/models/CANARY/infer"),
            ("unknown version", "POST", "/v2/models/identity_fp32/versions/CANARY/infer"),
            ("model with an impossible name", "POST", "/v2/models/%20CANARY%2f../infer"),
            ("metadata", "GET", "/v2/models/CANARY"),
            ("readiness", "GET", "/v2/models/CANARY/ready"),
            ("model config", "GET", "/v2/models/CANARY/config"),
            ("statistics", "GET", "/v2/models/CANARY/stats"),
            ("feature view", "GET", "/feature-views/CANARY"),
            ("feature service", "GET", "/feature-services/CANARY"),
            ("unknown route", "GET", "/CANARY"),
            ("unknown query", "GET", "/v2?CANARY=CANARY"),
            ("unknown generation", "GET", "/audit/logs/CANARY/checkpoint"),
            ("unknown tile", "GET", "/audit/logs/1/tile/entries/CANARY"),
            ("unknown method", "CANARY", "/v2"),
        ] {
            let word = self.word(place);
            let body = if method == "POST" { call.as_bytes() } else { b"" };
            let json = [("content-type", "application/json")];
            let (method, path) = (method.replace("CANARY", &word), path.replace("CANARY", &word));
            let answer = self.ask(place, &method, &path, &json, body);
            assert!(answer.status >= 400 || place == "unknown query", "{place}: {answer:?}");
        }
    }

    fn administer(&mut self) {
        for (place, method, path, body) in [
            ("load", "POST", "/v2/repository/models/CANARY/load", "{\"parameters\": {\"CANARY\": \"CANARY\"}}"),
            ("unload", "POST", "/v2/repository/models/CANARY/unload", "{}"),
            (
                "load with a config",
                "POST",
                "/v2/repository/models/add_sub/load",
                "{\"parameters\": {\"config\": \"CANARY\"}}",
            ),
            ("index", "POST", "/v2/repository/index", "{\"CANARY\": true}"),
            ("backup", "GET", "/features/backup?feature_view=CANARY", ""),
            ("backup with a query", "GET", "/features/backup?CANARY", ""),
            ("restore", "POST", "/features/restore", "CANARY\nCANARY"),
            ("order of an unknown kind", "POST", "/updates/CANARY/shapes/pin", ""),
            ("order for an unknown model", "POST", "/updates/models/CANARY/pin", ""),
            ("unpin", "POST", "/updates/models/CANARY/unpin", ""),
            ("rollback", "POST", "/updates/models/CANARY/rollback", ""),
            ("unknown order", "POST", "/updates/models/shapes/CANARY", ""),
            ("check of no folder", "POST", "/updates/check", "{\"from\": \"file:///CANARY\"}"),
            ("check elsewhere", "POST", "/updates/check", "{\"from\": \"https://CANARY.example/CANARY/\"}"),
            ("check of nothing", "POST", "/updates/check", "{\"from\": \"CANARY\"}"),
        ] {
            let word = self.word(place);
            let (path, body) = (path.replace("CANARY", &word), body.replace("CANARY", &word));
            self.ask(place, method, &path, &[("content-type", "application/json")], body.as_bytes());
        }
    }

    fn over_the_socket(&mut self) {
        let word = self.word("socket: element");
        let input = json!({"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [word]});
        let body = json!({"id": self.word("socket: id"), "inputs": [input]});
        assert_eq!(self.daemon.unix_client().post_json("/v2/models/identity_string/infer", &body).status, 200);
        self.answered += 1;
    }
}

/// An element of a BYTES tensor in binary: its length before it.
fn element(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes].concat()
}
