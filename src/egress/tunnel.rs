//! HTTP CONNECT: a tunnel through a proxy (RFC 9110, section 9.3.6).

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::EgressError;
use super::address::HostPort;

/// The longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Asks `proxy` for a tunnel to `to` over an open connection. Returns the number of bytes sent.
pub(super) async fn open_tunnel<S>(stream: &mut S, proxy: &HostPort, to: &HostPort) -> Result<usize, EgressError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let failed = |reason: String| EgressError::Proxy { proxy: proxy.to_string(), destination: to.to_string(), reason };
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    let broken = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => failed("it closed the connection without an answer".to_owned()),
        _ => failed(format!("the connection to it failed ({error})")),
    };
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;

    // Byte by byte: the bytes after the head belong to the destination.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Err(failed(format!("its answer is longer than {HEAD_BYTES_MAX} bytes: is it an HTTP proxy?")));
        }
        head.push(stream.read_u8().await.map_err(broken)?);
    }

    match status(&head) {
        Some(200..=299) => Ok(request.len()),
        Some(status) => Err(failed(reason(status))),
        None => Err(failed("its answer is not HTTP: is it an HTTP proxy?".to_owned())),
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    let mut words = line.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next().filter(|status| status.len() == 3)?.parse().ok()
}

fn reason(status: u16) -> String {
    match status {
        407 => "it wants a user name and a password (407), which Ledge does not send: let it admit this box by address"
            .to_owned(),
        403 | 405 => format!("its rules forbid it ({status}): allow CONNECT to this host and port"),
        502..=504 => format!("it cannot reach the destination ({status})"),
        _ => format!("it answers with status {status}"),
    }
}

/// Reads the answer of a proxy for the fuzzers; true when it opens a tunnel. Only an answer of HTTP/1 with a status of
/// 2xx does, and the bytes after its head are left unread. The folder `fuzz/` and `tests/it/fuzz.rs` call it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_proxy_answer(data: &[u8]) -> bool {
    use futures_util::FutureExt as _;

    let [proxy, to] =
        ["proxy:3128", "box:443"].map(|text| text.parse().unwrap_or_else(|_| unreachable!("{text} is valid")));
    let mut answer = data;
    let asked = {
        let mut stream = tokio::io::join(&mut answer, tokio::io::sink());
        open_tunnel(&mut stream, &proxy, &to).now_or_never()
    };
    let head = data.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    match asked.unwrap_or_else(|| unreachable!("memory never waits")) {
        Ok(_) => {
            let status = data.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
            assert!(data.starts_with(b"HTTP/1.") && status.starts_with(b"2"), "{}", data.escape_ascii());
            assert_eq!(Some(data.len() - answer.len()), head);
            assert!(head.is_some_and(|head| head <= HEAD_BYTES_MAX));
            true
        }
        Err(error) => {
            assert!(data.len() - answer.len() <= head.unwrap_or(HEAD_BYTES_MAX));
            assert!(error.to_string().len() < 512, "{error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn asked(answer: &[u8]) -> Result<usize, String> {
        let (mut near, mut far) = tokio::io::duplex(64 << 10);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let (proxy, to) = ("proxy:3128".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap());
        let sent = open_tunnel(&mut near, &proxy, &to).await;
        drop(near);
        let mut request = String::new();
        far.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n");
        sent.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_way_through_is_asked_for_and_a_refusal_is_told() {
        assert_eq!(asked(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n").await, Ok(63));
        assert_eq!(asked(b"HTTP/1.0 200\r\n\r\n").await, Ok(63));
        for (answer, told) in [
            (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".as_slice(), "a user name and a password"),
            (b"HTTP/1.1 403 Forbidden\r\n\r\n", "its rules forbid it (403)"),
            (b"HTTP/1.1 503 \r\n\r\n", "cannot reach the destination (503)"),
            (b"HTTP/1.1 301 \r\n\r\n", "status 301"),
            (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
            (b"HTTP/1.1 200", "closed the connection"),
            (&[b'x'; HEAD_BYTES_MAX], "longer than 8192 bytes"),
        ] {
            let error = asked(answer).await.unwrap_err();
            assert!(error.starts_with("the proxy proxy:3128 does not connect to [2001:db8::1]:443: "), "{error}");
            assert!(error.contains(told), "{error}");
        }
    }

    proptest! {
        #[test]
        fn only_a_2xx_answer_opens_a_way_and_what_is_behind_it_is_left_to_the_destination(answer: Vec<u8>) {
            fuzz_proxy_answer(&answer);
            fuzz_proxy_answer(&[&b"HTTP/1.1 200\r\n\r\n"[..], &answer].concat());
        }
    }
}
