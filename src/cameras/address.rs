//! The address of a picture on a camera, as the configuration has it.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use ledge_egress::HostPort;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `http://HOST[:PORT]/PATH[?QUERY]`, or `https://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotUrl {
    pub tls: bool,
    pub at: HostPort,
    /// Path and query, with the leading slash, percent-encoded. The query of some cameras has a password.
    pub path: String,
}

/// A text that is not such an address. It does not repeat the text, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSnapshotUrl {
    #[error("expected http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH of a single picture")]
    Form,
    #[error("expected an address without an '@': set user and password in `user` and `password_file`")]
    Login,
    #[error("rtsp:// is video, which Ledge does not decode: use the camera's address of a single picture over HTTP")]
    Video,
    #[error("has a character that an address has only percent-encoded, such as a space (%20)")]
    Character,
}

impl FromStr for SnapshotUrl {
    type Err = InvalidSnapshotUrl;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotUrl> {
        use InvalidSnapshotUrl as Invalid;
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(("rtsp" | "rtsps", _)) => return Err(Invalid::Video),
            _ => return Err(Invalid::Form),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).ok_or(Invalid::Form)?;
        if authority.contains('@') {
            return Err(Invalid::Login);
        }
        // A colon within brackets is the address's own.
        let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let at = if has_port { authority.parse() } else { HostPort::new(authority, if tls { 443 } else { 80 }) };
        let at = at.map_err(|_| Invalid::Form)?;
        if !path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)) {
            return Err(Invalid::Character);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, at, path })
    }
}

impl fmt::Display for SnapshotUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.at, self.path)
    }
}

impl Serialize for SnapshotUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SnapshotUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_path_with_its_query() {
        for (text, written) in [
            ("http://10.0.0.7/snap.jpg", "http://10.0.0.7:80/snap.jpg"),
            (
                "https://Camera.lan:8443/cgi-bin/a.cgi?channel=1&q=%20",
                "https://camera.lan:8443/cgi-bin/a.cgi?channel=1&q=%20",
            ),
            ("http://[2001:db8::1]:8080?a", "http://[2001:db8::1]:8080/?a"),
            ("https://camera", "https://camera:443/"),
        ] {
            assert_eq!(text.parse::<SnapshotUrl>().map(|it| it.to_string()), Ok(written.to_owned()), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        use InvalidSnapshotUrl as Invalid;
        for (text, reason) in [
            ("", Invalid::Form),
            ("camera/snap.jpg", Invalid::Form),
            ("ftp://camera/snap.jpg", Invalid::Form),
            ("http:///snap.jpg", Invalid::Form),
            ("http://camera:0/", Invalid::Form),
            ("http://admin:secret@camera/", Invalid::Login),
            ("rtsp://camera/stream", Invalid::Video),
            ("http://camera/a b", Invalid::Character),
            ("http://camera/a\r\nHost: b", Invalid::Character),
            ("http://camera/ä", Invalid::Character),
            ("http://camera/#part", Invalid::Character),
        ] {
            assert_eq!(text.parse::<SnapshotUrl>(), Err(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_as_what_it_is_written_as(text in "https?://(\\[)?[a-z0-9:.]{0,20}(\\])?(:[0-9]{0,5})?([/?]\\PC{0,10})?|\\PC*") {
            if let Ok(read) = text.parse::<SnapshotUrl>() {
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }
}
