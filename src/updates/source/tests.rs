use std::io::{Read, Write};
use std::net::TcpListener;

use ledge_base::durable;
use ledge_egress::EgressConfig;
use ledge_service::audit_event::AuditSink;
use proptest::prelude::*;

use std::time::Duration;

use super::*;

/// Makes a folder with `metadata/` and `targets/`, and its source.
fn folder() -> (tempfile::TempDir, RepositorySource) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("metadata")).unwrap();
    std::fs::create_dir_all(folder.path().join("targets/a")).unwrap();
    let source = RepositorySource::new(&RepositoryAddress::Folder(folder.path().to_owned()), None);
    (folder, source)
}

/// Starts a server that answers one connection after the other; its thread returns the requested paths.
fn server(answers: Vec<String>) -> (RepositorySource, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/base", listener.local_addr().unwrap()).parse().unwrap();
    let serving = std::thread::spawn(move || {
        let answer = |answer: &String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned()
        };
        answers.iter().map(answer).collect()
    });
    let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
    let http = client(&address, &egress, None, TlsClientSettings::default);
    (RepositorySource::new(&address, http), serving)
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

async fn all(mut arrival: TargetDownload) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = arrival.chunk().await.unwrap() {
        all.extend_from_slice(&chunk);
    }
    all
}

#[tokio::test]
async fn a_folder_serves_as_a_repository() {
    let (folder, source) = folder();
    durable::replace(&folder.path().join("metadata/timestamp.json"), b"{}").unwrap();
    assert_eq!(source.metadata("timestamp.json", 2).await.unwrap(), Some(b"{}".to_vec()));
    assert!(matches!(source.metadata("timestamp.json", 1).await, Err(SourceError::TooLong { max: 1, .. })));
    assert_eq!(source.metadata("2.root.json", 9).await.unwrap(), None);
    let content: Vec<u8> = (0..=255).cycle().take(700_000).collect();
    durable::replace(&folder.path().join("targets/a/b"), &content).unwrap();
    for from in [0, 1, 300_000, 700_000] {
        let arrival = source.target("a/b", from).await.unwrap();
        assert_eq!((arrival.start, arrival.length), (from, Some(700_000 - from)));
        assert_eq!(all(arrival).await, content[usize::try_from(from).unwrap()..]);
    }
    assert_eq!(source.target("a/b", 700_001).await.unwrap().start, 0);
    assert!(matches!(source.target("a/c", 0).await, Err(SourceError::Folder { .. })));
    // A folder is not a file.
    assert!(source.target("a", 0).await.is_err());
}

#[tokio::test]
async fn no_name_leads_out_of_the_repository() {
    let (folder, source) = folder();
    durable::replace(&folder.path().join("secret"), b"secret").unwrap();
    let long = "a".repeat(2000);
    for name in ["../secret", "/etc/passwd", "a/../../secret", "", "a//b", "./a", "a/", "..", "a\0b", "a\\b", &long] {
        assert!(matches!(source.target(name, 0).await, Err(SourceError::Name { .. })), "{name}");
        assert!(matches!(source.metadata(name, 9).await, Err(SourceError::Name { .. })), "{name}");
    }
}

#[tokio::test]
async fn what_a_server_does_not_have_or_does_not_show_is_not_there() {
    let statuses = ["404 Not Found", "403 Forbidden", "410 Gone"];
    let (source, serving) = server(statuses.map(|status| answer(status, "<Error/>")).into());
    for _ in statuses {
        assert_eq!(source.metadata("2.root.json", 100).await.unwrap(), None);
    }
    assert_eq!(serving.join().unwrap(), ["/base/metadata/2.root.json"; 3]);
}

#[tokio::test]
async fn each_status_is_told_with_its_file() {
    for status in [
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "410 Gone",
        "408 Request Timeout",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Service Unavailable",
    ] {
        let (source, serving) = server(vec![answer(status, "")]);
        let error = source.target("a/b", 5).await.unwrap_err();
        assert!(error.to_string().contains(&status[..3]) && error.to_string().contains("a/b"), "{error}");
        serving.join().unwrap();
    }
    let (source, serving) = server(vec!["HTTP/1.1 429 \r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n".into()]);
    let error = source.target("a", 0).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(9)));
    serving.join().unwrap();
}

#[tokio::test]
async fn a_file_that_became_shorter_is_fetched_anew() {
    let (source, serving) = server(vec![answer("416 Range Not Satisfiable", ""), answer("200 OK", "new")]);
    let arrival = source.target("a b/ü", 9).await.unwrap();
    assert_eq!((arrival.start, arrival.length), (0, Some(3)));
    assert_eq!(all(arrival).await, b"new");
    assert_eq!(serving.join().unwrap(), ["/base/targets/a%20b/%C3%BC"; 2]);
}

#[tokio::test]
async fn metadata_that_does_not_end_is_cut_off() {
    let (source, serving) = server(vec![answer("200 OK", &"x".repeat(11)), {
        let chunk = format!("8\r\n{}\r\n", "x".repeat(8));
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}")
    }]);
    for _ in 0..2 {
        assert!(matches!(source.metadata("a.json", 10).await, Err(SourceError::TooLong { .. })));
    }
    serving.join().unwrap();
}

#[tokio::test]
async fn an_address_without_a_client_is_told() {
    let address = "https://updates.example/".parse().unwrap();
    let error = RepositorySource::new(&address, None).metadata("a.json", 1).await.unwrap_err();
    assert!(error.to_string().starts_with("https://updates.example:443/ is on the network"), "{error}");
}

#[test]
fn a_configuration_leads_to_its_source() {
    let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
    let mut config = UpdatesConfig::default();
    assert!(RepositorySource::configured(&config, &egress).is_none());
    config.repository = Some("http://127.0.0.1:1/a".parse().unwrap());
    let FileTree::Http { base, .. } = RepositorySource::configured(&config, &egress).unwrap().targets else { panic!() };
    assert_eq!(&*base, "/a/targets/");
}

proptest! {
    #[test]
    fn an_escaped_path_is_a_path_of_a_url_and_the_same_again(path in "\\PC{0,40}") {
        let escaped = encoded(&path);
        let uri: Result<::http::Uri, _> = format!("/{escaped}").parse();
        prop_assert!(uri.is_ok());
        let mut bytes = Vec::new();
        let mut rest = escaped.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            if *first == b'%' {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
                rest = &tail[2..];
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        prop_assert_eq!(bytes, path.as_bytes());
    }
}
