//! Canaries in everything that a client of the broker can send. Those of one call may come back to its caller.

use serde_json::{Value, json};

use super::over_http::WINE;
use super::photograph;
use super::secrets::Canaries;
use crate::boxes::wait_until;
use crate::daemon::TestDaemon;
use crate::message::Outgoing;
use crate::mqtt::Peer;

/// The beginning of the places of a call, up to the name of the call.
pub const CALL: &str = "mqtt call ";

/// Callers of one box behind a broker.
pub struct MqttCallers<'a> {
    pub daemon: &'a TestDaemon,
    pub peer: Peer,
    pub canaries: &'a mut Canaries,
    /// The number of inference calls that were answered.
    pub answered: usize,
}

impl MqttCallers<'_> {
    /// Everything below.
    pub fn ask_everything(&mut self) {
        self.calls();
        self.bindings();
        self.told_nothing();
    }

    /// A canary of a call, which its answer may repeat.
    fn of_call(&mut self, call: &str, what: &str) -> String {
        self.canaries.word(&format!("{CALL}{call}: {what}"))
    }

    /// Sends a call, and waits for an answer with the given status.
    #[track_caller]
    fn ask(&mut self, call: &str, topic: &str, content_type: &str, payload: &[u8]) -> u16 {
        self.canaries.content(&format!("{CALL}{call}: whole payload"), payload);
        let response = format!("answers/{}", self.of_call(call, "response topic"));
        let correlation = self.canaries.bytes(&format!("{CALL}{call}: correlation data"));
        let (name, value) = (format!("{call}: name of a property"), format!("{call}: property"));
        let message = Outgoing::new(topic, payload)
            .answer_to(&response)
            .correlation(&correlation)
            .content_type(content_type)
            .user(&self.canaries.word(&name), &self.canaries.word(&value));
        self.peer.send(message);
        let answer = self.peer.receive();
        assert_eq!((answer.topic.as_str(), answer.correlation.as_deref()), (response.as_str(), Some(&correlation[..])));
        answer.status()
    }

    fn calls(&mut self) {
        let json = "application/json";
        let text = text(&self.of_call("text", "id"), &self.of_call("text", "element"));
        let call = |model: &str| format!("ledge/v1/box-1/infer/{model}");
        assert_eq!(self.ask("text", &call("identity_string"), json, text.to_string().as_bytes()), 200);

        let numbers = self.canaries.numbers(&format!("{CALL}numbers: elements"));
        let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, numbers.len()], "data": numbers});
        let body = json!({"id": self.of_call("numbers", "id"), "inputs": [input]});
        assert_eq!(self.ask("numbers", &call("identity_fp32"), json, body.to_string().as_bytes()), 200);

        // The metadata of a photograph is in no answer.
        let photograph = photograph(self.canaries, "photograph over MQTT");
        assert_eq!(self.ask("photograph", &call("efficientnet_lite0"), "image/jpeg", &photograph), 200);
        self.answered += 3;

        let model = self.of_call("unknown model", "model");
        let input = add_sub(&self.of_call("unknown model", "id"));
        assert_eq!(self.ask("unknown model", &call(&model), json, &input), 404);
        let version = format!("add_sub/versions/{}", self.of_call("unknown version", "version"));
        let input = add_sub(&self.of_call("unknown version", "id"));
        assert!(self.ask("unknown version", &call(&version), json, &input) >= 400);
        let broken = format!("{{\"id\": \"{}\", \"inputs\": [", self.of_call("broken JSON", "id"));
        assert_eq!(self.ask("broken JSON", &call("add_sub"), json, broken.as_bytes()), 400);
        let unknown = format!("{{\"{}\": 1, \"inputs\": []}}", self.of_call("unknown field", "field"));
        assert_eq!(self.ask("unknown field", &call("add_sub"), json, unknown.as_bytes()), 400);
        let entity = self.of_call("unknown entity", "entity");
        let body = json!({"entities": {"wine_id": [entity]}}).to_string();
        assert!(self.ask("unknown entity", &call("wine_mlp"), json, body.as_bytes()) >= 400);
        let kind = self.of_call("unknown content type", "content type");
        let input = add_sub(&self.of_call("unknown content type", "id"));
        self.answered += usize::from(self.ask("unknown content type", &call("add_sub"), &kind, &input) == 200);

        // Without a response topic the answer goes to the topic of results, with its id.
        let body = self::text(&self.of_call("no response topic", "id"), &self.of_call("no response topic", "element"));
        self.peer.send(Outgoing::json(&call("identity_string"), &body));
        assert_eq!(self.peer.receive().status(), 200);
        self.answered += 1;
    }

    fn bindings(&mut self) {
        // One that pushes: nothing of it comes back.
        let wine = self.canaries.word("binding: entity in a topic");
        let row = json!({"all": WINE, "grower": self.canaries.word("binding: feature value")});
        self.peer.send(Outgoing::json(&format!("cellar/{wine}/lab"), &row));
        let request = json!({"entities": {"wine_id": [wine]}});
        wait_until("the row that was pushed", || {
            let is_there = self.daemon.client().post_json("/v2/models/wine_mlp/infer", &request).status == 200;
            self.answered += usize::from(is_there);
            is_there
        });
        // One that answers to a topic made of the one that it came with.
        let row = json!({"wine": self.canaries.word("scored: entity"), "measured": WINE,
                         "grower": self.canaries.word("scored: feature value")});
        let level = self.of_call("scored", "level of a topic");
        self.peer.send(Outgoing::json(&format!("press/{level}/lab"), &row));
        assert_eq!(self.peer.receive().topic, format!("cultivar/{level}"));
        let (level, said) = (self.of_call("echo", "level of a topic"), self.of_call("echo", "element"));
        let message = json!({"said": said, "by": self.canaries.word("echo: field that is not selected")});
        self.peer.send(Outgoing::json(&format!("notes/{level}/said"), &message));
        assert_eq!(self.peer.receive().topic, format!("echo/{level}"));
        self.answered += 2;
        let level = self.of_call("echo of nothing", "level of a topic");
        let message = json!({"by": self.canaries.word("echo of nothing: field that is not selected")});
        self.peer.send(Outgoing::json(&format!("notes/{level}/said"), &message));
        assert_eq!(self.peer.receive().status(), 400);
    }

    /// Messages that are answered with nothing.
    fn told_nothing(&mut self) {
        let hint = json!({self.canaries.word("hint: key"): self.canaries.word("hint: value")});
        self.peer.send(Outgoing::json("ledge/v1/box-1/desired", &hint));
        // Response topics that are not allowed.
        let forbidden = self.canaries.word("forbidden response topic");
        let body = text(&self.canaries.word("forbidden: id"), &self.canaries.word("forbidden: element"));
        self.peer.send(Outgoing::json("ledge/v1/box-1/infer/identity_string", &body).answer_to(&forbidden));
        let row = json!({"all": self.canaries.word("failed binding: value")});
        let level = self.canaries.word("failed binding: level of a topic");
        self.peer.send(Outgoing::json(&format!("cellar/{level}/lab"), &row));
        let row = json!({"wine": 7, "measured": self.canaries.word("failed scoring: value")});
        let level = self.canaries.word("failed scoring: level of a topic");
        self.peer.send(Outgoing::json(&format!("press/{level}/lab"), &row));
        // Messages are handled in their order.
        assert_eq!(self.ask("last", "ledge/v1/box-1/infer/nothing", "application/json", b"{}"), 404);
    }
}

fn text(id: &str, element: &str) -> Value {
    json!({"id": id, "inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [element]}]})
}

fn add_sub(id: &str) -> Vec<u8> {
    crate::message::add_sub(id, 2.0).to_string().into_bytes()
}
