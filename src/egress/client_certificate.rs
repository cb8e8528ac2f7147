//! What a server says when it refuses the certificate of this box.

/// The words of a server, and the advice. The first are those of `OpenSSL` in nginx's `$ssl_client_verify`, which
/// the nginx of `ledge-platform init` answers, and the last those of nginx's own pages for status 400.
const REFUSALS: &[(&str, &str)] = &[
    ("certificate revoked", ": the certificate of this box is revoked"),
    ("certificate has expired", ": the certificate of this box has expired"),
    ("certificate is not yet valid", ": the certificate of this box is not valid yet: is one of the two clocks wrong?"),
    ("CRL has expired", ": its list of revoked certificates has expired: the platform must sign it again"),
    // nginx names the last error that OpenSSL met: a foreign authority has no list there.
    ("unable to get certificate CRL", ": the certificate of this box is of an authority that it does not know"),
    ("issuer certificate", ": the certificate of this box is of an authority that it does not know"),
    ("self-signed certificate", ": the certificate of this box is of an authority that it does not know"),
    (
        "The SSL certificate error",
        ": it refuses the certificate of this box, which is revoked, has expired, or is of another authority",
    ),
    ("No required SSL certificate was sent", ": it wants a client certificate"),
    ("plain HTTP request was sent to HTTPS port", ": it speaks HTTPS on this port"),
];

/// The bytes of an answer in which these words are.
pub const REFUSAL_BYTES_MAX: usize = 1024;

/// The advice for an answer with status 400, by its body.
pub fn client_certificate_refusal(body: &[u8]) -> &'static str {
    let body = String::from_utf8_lossy(body);
    let known = REFUSALS.iter().find(|(words, _)| body.contains(words)).map(|(_, advice)| *advice);
    known.unwrap_or(": does it speak HTTPS on this port, or want a client certificate?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_the_words_of_the_server() {
        for (body, told) in [
            ("FAILED:certificate revoked", "is revoked"),
            ("FAILED:unable to get local issuer certificate", "authority that it does not know"),
            ("FAILED:unable to get certificate CRL", "authority that it does not know"),
            ("<html><head><title>400 The SSL certificate error</title></head>", "refuses the certificate"),
            ("<title>400 No required SSL certificate was sent</title>", "wants a client certificate"),
            ("\u{fffd}", "does it speak HTTPS"),
            ("", "does it speak HTTPS"),
        ] {
            assert!(client_certificate_refusal(body.as_bytes()).contains(told), "{body}");
        }
        assert!(client_certificate_refusal(&[0xff, 0xfe]).contains("does it speak HTTPS"));
    }
}
