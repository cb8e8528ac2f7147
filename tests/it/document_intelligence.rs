//! Azure's form of document analysis, and Open WebUI's: what is begun, found, refused and forgotten, and by whom.

mod hostile;

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, model_folder};

const MODEL: &str = "document_reader";

const READ: &str = "/documentintelligence/documentModels/prebuilt-read";

const VERSION: &str = "api-version=2024-11-30";

/// The longest wait for an analysis.
const ANALYSIS_TIMEOUT: Duration = Duration::from_secs(100);

fn root() -> TestRoot {
    TestRoot::new().models(&[MODEL])
}

fn receipt() -> Vec<u8> {
    std::fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap()
}

fn begin(client: &mut Client, model: &str, headers: &[(&str, &str)], file: &[u8]) -> Response {
    let body = json!({"base64Source": BASE64_STANDARD.encode(file)}).to_string();
    let headers = [&[("content-type", "application/json")], headers].concat();
    client.post(&format!("{model}:analyze?{VERSION}"), &headers, body.as_bytes())
}

/// The path of the result.
#[track_caller]
fn location(begun: &Response) -> String {
    assert_eq!(begun.status, 202, "{begun:?}");
    let location = begun.header("operation-location").unwrap();
    location.strip_prefix("http://localhost").unwrap_or_else(|| panic!("{location}")).to_owned()
}

/// The operation at its end.
#[track_caller]
fn ended(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> Value {
    let begun = Instant::now();
    loop {
        let answer = client.request("GET", path, headers, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let operation = answer.json();
        if operation["status"] != "running" {
            return operation;
        }
        assert!(begun.elapsed() < ANALYSIS_TIMEOUT, "{operation}");
    }
}

#[test]
fn a_receipt_is_analyzed_for_its_caller_alone() {
    let root = root().set("access.loopback=[]");
    let [one, other] = ["one", "other"].map(|name| key(&root, &[name, "--role", "infer"]));
    let elsewhere = key(&root, &["elsewhere", "--role", "infer", "--model", "add_sub"]);
    let daemon = root.start();
    let client = &mut daemon.client();
    let header = "ocp-apim-subscription-key";
    assert_eq!(begin(client, READ, &[(header, &elsewhere)], &receipt()).status, 403);
    let begun = begin(client, READ, &[(header, &one)], &receipt());
    let path = location(&begun);
    let operation = ended(client, &path, &[(header, &one)]);
    assert_eq!(operation["status"], "succeeded", "{operation}");
    let result = &operation["analyzeResult"];
    assert!(result["content"].as_str().unwrap().contains("\nTotal EUR 13.70\n"), "{result}");
    assert_eq!((&result["modelId"], &result["pages"][0]["unit"]), (&json!("prebuilt-read"), &json!("pixel")));
    let words = result["pages"][0]["words"].as_array().unwrap();
    assert!(words.iter().any(|word| word["content"] == "13.70" && word["polygon"].as_array().unwrap().len() == 8));

    for (key, path, status) in [
        (&other, path.clone(), 404),
        (&one, path.replace("prebuilt-read", "prebuilt-layout"), 404),
        (&one, path.replace("2024-11-30", "2020-01-01"), 404),
        (&one, path.replace('?', "/pdf?"), 404),
        (&one, path.replace(VERSION, ""), 404),
    ] {
        let answer = client.request("GET", &path, &[(header, key)], b"");
        assert_eq!(answer.status, status, "{path} {answer:?}");
        assert_eq!(answer.json()["error"]["code"], "NotFound", "{answer:?}");
    }
    assert_eq!(client.request("GET", &path, &[], b"").json()["error"]["code"], "Unauthorized");
}

#[test]
fn what_cannot_be_analyzed_has_an_error_in_the_form_of_the_service() {
    let root = root().set("documents.public_url=\"https://proxy.example/box\"");
    let key = key(&root, &["far", "--role", "infer"]);
    let daemon = root.start();
    let client = &mut daemon.client();
    let mut refused = |path: &str, kind: &str, body: &[u8]| {
        let answer = client.post(path, &[("content-type", kind)], body);
        let error = answer.json()["error"].clone();
        assert!(error["message"].is_string(), "{answer:?}");
        (answer.status, format!("{} {}", error["code"], error["innererror"]["code"]).replace('"', ""))
    };
    let analyze = format!("{READ}:analyze?{VERSION}");
    let (json_type, file) = ("application/json", "application/octet-stream");
    let url = br#"{"urlSource": "http://127.0.0.1:1/x.pdf"}"#;
    let parameter = "InvalidRequest InvalidParameter";
    let content = "InvalidRequest InvalidContent";
    assert_eq!(refused(&analyze, json_type, url), (400, parameter.into()));
    assert_eq!(refused(&analyze, json_type, b"{}"), (400, parameter.into()));
    assert_eq!(refused(&analyze, file, b"PK\x03\x04\x14\0"), (400, content.into()));
    assert_eq!(refused(&analyze, file, b""), (400, content.into()));
    assert_eq!(refused(&analyze, "text/html", b"<p>"), (415, "UnsupportedMediaType null".into()));
    assert_eq!(refused(&format!("{analyze}&features=speech"), file, &receipt()), (400, parameter.into()));
    let custom = analyze.replace("prebuilt-read", "my-model");
    assert_eq!(refused(&custom, file, &receipt()), (404, "NotFound null".into()));
    assert_eq!(refused(&analyze.replace(":analyze", ""), file, &receipt()), (404, "NotFound null".into()));
    // A caller with a key may use any name of this box, but gets no address of another one.
    let client = &mut daemon.client();
    let head = format!(
        "POST {analyze} HTTP/1.1\r\nhost: far.example\r\nx-api-key: {key}\r\ncontent-type: application/pdf\r\n"
    );
    client.send(format!("{head}content-length: 5\r\n\r\n%PDF-").as_bytes());
    let answer = client.receive();
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("http.allowed_hosts"), "{answer:?}");
    // A proxy has one address for its callers, whatever port they name.
    client.send(format!("{head}content-length: 5\r\n\r\n%PDF-").replace("far.example", "Proxy.example:444").as_bytes());
    let answer = client.receive();
    let address = answer.header("operation-location").unwrap().to_owned();
    assert!(address.starts_with("https://proxy.example/box/documentintelligence/"), "{address}");

    let client = &mut daemon.client();
    let path = location(&begin(client, READ, &[], b"%PDF-1.7 nothing of one"));
    let operation = ended(client, &path, &[]);
    assert_eq!(
        (&operation["status"], &operation["error"]["innererror"]["code"]),
        (&json!("failed"), &json!("InvalidContent"))
    );
}

#[test]
fn operations_are_bounded_for_each_caller_and_forgotten() {
    let root = root().set("documents.max_operations=2").set("documents.keep_results_s=2");
    let other = key(&root, &["other", "--role", "infer"]);
    let daemon = root.start();
    let client = &mut daemon.client();
    let paths = [(); 2].map(|()| location(&begin(client, READ, &[], &receipt())));
    let third = begin(client, READ, &[], &receipt());
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")), "{third:?}");
    // Another caller is served meanwhile.
    let headers = [("x-api-key", other.as_str())];
    let path = location(&begin(client, READ, &headers, &receipt()));
    assert_eq!(ended(client, &path, &headers)["status"], "succeeded");
    for path in &paths {
        let begun = Instant::now();
        while client.get(path).status != 404 {
            assert!(begun.elapsed() < ANALYSIS_TIMEOUT, "{path} is kept");
        }
    }
    assert_eq!(begin(client, READ, &[], &receipt()).status, 202);
}

#[test]
fn open_webui_gets_the_text_of_each_page() {
    let daemon = root().start();
    let invoice = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/documents/invoice.pdf")).unwrap();
    let headers = [("content-type", "application/pdf"), ("x-filename", "invoice.pdf")];
    let pages = daemon.client().request("PUT", "/process", &headers, &invoice).json();
    let pages = pages.as_array().unwrap();
    assert_eq!(pages.iter().map(|page| &page["metadata"]["page"]).collect::<Vec<_>>(), [&json!(0), &json!(1)]);
    assert!(pages[0]["page_content"].as_str().unwrap().contains("Total EUR 595.00\n"), "{pages:?}");
    let refused = daemon.client().request("PUT", "/process", &headers, b"no document");
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn without_encryption_documents_are_served_on_this_machine_with_a_key() {
    let root = root();
    let key = key(&root, &["paperless", "--role", "infer"]);
    let daemon = root.set("http.local_plain=[{listen=\"127.0.0.1:0\", peers=[\"127.0.0.0/8\"]}]").start();
    let address = daemon.events("listener.listening_unencrypted")[0]["address"].as_str().unwrap().parse().unwrap();
    let client = &mut Client::tcp(address);
    let headers = [("ocp-apim-subscription-key", key.as_str())];
    let path = location(&begin(client, READ, &headers, &receipt()));
    assert_eq!(ended(client, &path, &headers)["status"], "succeeded");
    assert_eq!(begin(&mut Client::tcp(address), READ, &[], &receipt()).status, 401);
}

/// A daemon that reads documents answers other calls while many analyses are begun.
#[test]
fn other_callers_are_served_beside_analyses_without_end() {
    let daemon: TestDaemon = TestRoot::new().models(&[MODEL, "add_sub"]).start();
    let client = &mut daemon.client();
    let mut statuses = std::collections::BTreeMap::new();
    for index in 0..200 {
        let begun = begin(client, READ, &[], if index % 2 == 0 { b"%PDF-" } else { b"\x89PNG\r\n\x1a\n" });
        *statuses.entry(begun.status).or_insert(0) += 1;
        assert_eq!(client.get("/v2/models/add_sub/ready").status, 200);
    }
    assert!(statuses.keys().all(|status| [202, 429].contains(status)), "{statuses:?}");
    assert!(statuses[&202] >= 32, "{statuses:?}");
}
