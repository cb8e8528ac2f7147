//! Tests of requests for pictures of cameras.

use super::super::http::{HttpError, SnapshotClient};
use super::http::{plain, server};
use super::*;

fn client(at: &HostPort) -> SnapshotClient {
    SnapshotClient::new(egress("").0, plain(at), Duration::from_millis(300))
}

#[tokio::test]
async fn a_picture_is_requested_with_the_login_after_a_refusal_on_one_connection() {
    let answers = &[
        "HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm=\"a\", nonce=\"b\"\r\nWWW-Authenticate: Basic realm=\"a\"\r\n\
         Content-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\njpeg",
    ];
    let (at, seen) = server(answers, false).await;
    let client = client(&at);
    let refused = client.get("/a?b=1", None, 100).await.unwrap();
    assert_eq!((refused.status, refused.challenges.len()), (401, 2));
    assert_eq!(refused.challenges[1], "Basic realm=\"a\"");
    assert_eq!(refused.body().await.unwrap(), "no");
    let picture = client.get("/a?b=1", Some("Basic eDp5"), 100).await.unwrap();
    assert_eq!((picture.status, picture.bytes_max, picture.challenges.len()), (200, 4, 0));
    assert_eq!(picture.body().await.unwrap(), "jpeg");
    assert_eq!(seen.connections(), 1);

    let mut lines =
        seen.requests()[1].split("\r\n").map(str::to_owned).take_while(|line| !line.is_empty()).collect::<Vec<_>>();
    assert_eq!(lines.remove(0), "GET /a?b=1 HTTP/1.1");
    let sent: Vec<_> = lines.iter().map(|line| line.split_once(": ").unwrap().0).collect();
    assert_eq!(sent, crate::SNAPSHOT_HEADERS.map(|(name, _)| name)[1..]);
}

#[tokio::test]
async fn a_picture_that_is_too_large_or_has_no_end_is_an_error() {
    for (answer, reason) in [
        (&["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"][..], "larger than 0 MiB"),
        (&["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"], "larger than 0 MiB"),
        (&["HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace\r\n\r\n"], "stream of pictures without end"),
    ] {
        let (at, _) = server(answer, false).await;
        let read = async || client(&at).get("/?password=secret", None, 4).await?.body().await;
        let error = read().await.unwrap_err().to_string();
        assert!(error.contains(reason) && !error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_camera_that_hangs_is_given_up_and_a_redirect_is_not_followed() {
    let (at, _) = server(&[""], false).await;
    assert!(matches!(client(&at).get("/", None, 4).await, Err(HttpError::Stalled { .. })));
    let (at, _) = server(&["HTTP/1.1 302 There\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"], false).await;
    assert!(matches!(client(&at).get("/", None, 4).await, Err(HttpError::Redirect { .. })));
}
