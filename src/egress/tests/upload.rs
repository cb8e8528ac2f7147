//! Tests of uploads to a web server.

use ::http::header::IF_NONE_MATCH;
use ::http::{HeaderName, HeaderValue};
use bytes::Bytes;

use super::super::http::{HttpAnswer, HttpError, UploadClient};
use super::http::{head, plain};
use super::*;

fn only_new() -> [(HeaderName, HeaderValue); 1] {
    [(IF_NONE_MATCH, HeaderValue::from_static("*"))]
}

/// Puts `body` while `serve` is the server.
async fn put<F: Future<Output = ()>>(
    body: Bytes,
    listener: TcpListener,
    serve: impl FnOnce(TcpListener) -> F,
) -> (Result<HttpAnswer, HttpError>, DestinationStatistics) {
    let at = HostPort::new("127.0.0.1", listener.local_addr().unwrap().port()).unwrap();
    let (egress, _events) = egress("");
    let client = UploadClient::with_reply_timeout(egress.clone(), plain(&at), Duration::from_millis(300));
    let only_new = only_new();
    let put = client.put("/a", &only_new, body);
    let (answer, ()) = tokio::join!(put, serve(listener));
    let [statistics] = egress.statistics().try_into().unwrap();
    (answer, statistics)
}

async fn answered(stream: &mut TcpStream, length: usize, answer: &str) -> (String, Vec<u8>) {
    let head = head(stream).await.unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, body)
}

#[tokio::test]
async fn a_file_is_put_whole_and_counted_as_the_audit_log() {
    let (listener, port) = listener().await;
    let file = Bytes::from(vec![7; 100_000]);
    let (answer, statistics) = put(file.clone(), listener, async |listener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = "HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\nContent-Length: 3\r\n\r\nwhy";
        let (head, body) = answered(&mut stream, 100_000, answer).await;
        let expected = format!(
            "PUT /a HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: ledge\r\naccept: */*\r\nif-none-match: *\r\n\
             content-length: 100000\r\n\r\n"
        );
        assert_eq!(head, expected);
        assert_eq!(body, file);
    })
    .await;
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(answer.unwrap(), HttpAnswer { status: 503, body: "why".into(), retry_after });
    let sent = statistics.sent[EgressContent::Audit as usize].1;
    assert!(sent > 100_000 && statistics.sent.iter().map(|(_, bytes)| bytes).sum::<u64>() == sent);
}

#[tokio::test]
async fn a_long_answer_is_cut_and_a_redirect_is_not_followed() {
    let (first, _) = listener().await;
    let (answer, _) = put("x".into(), first, async |listener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = format!("HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n{}", "e".repeat(50_000));
        answered(&mut stream, 1, &answer).await;
    })
    .await;
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.body.len()), (500, 16 << 10));
    let (second, _) = listener().await;
    let (answer, _) = put("x".into(), second, async |listener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        answered(&mut stream, 1, "HTTP/1.1 307 There\r\nLocation: http://b/\r\nContent-Length: 0\r\n\r\n").await;
    })
    .await;
    // It is not followed, and returned like any other refusal.
    assert_eq!(answer.unwrap().status, 307);
}

#[tokio::test]
async fn a_slow_link_is_given_time_for_a_large_file_and_a_server_that_hangs_is_given_up() {
    const LENGTH: usize = 4 << 20;
    let socket = TcpSocket::new_v4().unwrap();
    // Otherwise the system would take all of it at once.
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let begun = Instant::now();
    let (answer, _) = put(vec![7; LENGTH].into(), socket.listen(1).unwrap(), async |listener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await.unwrap();
        let mut piece = vec![0; LENGTH / 16];
        for _ in 0..16 {
            tokio::time::sleep(Duration::from_millis(25)).await;
            stream.read_exact(&mut piece).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    assert_eq!(answer.unwrap().status, 201);
    // Longer than the reply timeout.
    assert!(begun.elapsed() >= Duration::from_millis(400));

    let (hanging, _) = listener().await;
    let (answer, _) = put("x".into(), hanging, async |listener| {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"x");
    })
    .await;
    assert!(matches!(answer, Err(HttpError::Stalled { .. })));
}

#[tokio::test]
async fn a_kept_connection_serves_the_next_request_and_one_that_broke_is_replaced() {
    let (listener, port) = listener().await;
    let at = HostPort::new("127.0.0.1", port).unwrap();
    let (egress, _events) = egress("");
    let client = UploadClient::with_reply_timeout(egress.clone(), plain(&at), Duration::from_secs(5));
    let taken = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        answered(&mut stream, 1, taken).await;
        answered(&mut stream, 1, taken).await;
        drop(stream);
        let (mut stream, _) = listener.accept().await.unwrap();
        answered(&mut stream, 1, taken).await
    };
    let calls = async {
        for file in ["a", "b", "c"] {
            assert_eq!(client.put("/f", &[], file.into()).await.unwrap().status, 201);
        }
    };
    let ((), (_, last)) = tokio::join!(calls, server);
    assert_eq!(last, b"c");
    assert_eq!(egress.statistics()[0].connections, 2);
}
