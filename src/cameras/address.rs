//! The address of a picture on a camera, as the configuration has it.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use ledge_egress::HostPort;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Parts of the names of parameters with secret values, in lower case: `password`, `pwd`, `loginpas`, `auth_token`.
const SECRET_NAMES: [&str; 6] = ["pas", "pw", "token", "secret", "auth", "key"];

/// Stands for a secret. An address never has these characters, so the shown text is not mistaken for one.
const HIDDEN: &str = "<hidden>";

/// `http://HOST[:PORT]/PATH[?QUERY]`, or `https://`.
///
/// The query of some cameras has a password. An address is shown and serialized without it: in `ledge config show`, in
/// logs, and in the settings of the last start, where only a new password is no change.
#[derive(Clone, PartialEq, Eq)]
pub struct SnapshotUrl {
    pub tls: bool,
    pub at: HostPort,
    /// Path and query, with the leading slash, percent-encoded. It may have a password.
    pub path: String,
}

/// The error for an invalid address. It does not repeat the text, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSnapshotUrl {
    #[error("expected http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH of a single picture")]
    Form,
    #[error("expected an address without an '@': set user and password in `user` and `password_file`")]
    Login,
    #[error("rtsp:// is video, which Ledge does not decode: use the camera's address of a single picture over HTTP")]
    Video,
    #[error("has {HIDDEN} in place of a password, as `ledge config show` writes it: put the password there")]
    Hidden,
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
        if path.contains(HIDDEN) {
            return Err(Invalid::Hidden);
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)) {
            return Err(Invalid::Character);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, at, path })
    }
}

impl SnapshotUrl {
    /// True if the query has a password or another secret.
    pub fn has_secret(&self) -> bool {
        self.path
            .split_once('?')
            .is_some_and(|(_, query)| query.split('&').any(|parameter| secret(parameter).is_some()))
    }
}

/// The name of a parameter with a secret value.
fn secret(parameter: &str) -> Option<&str> {
    let (name, value) = parameter.split_once('=')?;
    let lower = name.to_ascii_lowercase();
    (!value.is_empty() && SECRET_NAMES.iter().any(|part| lower.contains(part))).then_some(name)
}

impl fmt::Display for SnapshotUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, query) = self.path.split_once('?').map_or((&*self.path, None), |(path, query)| (path, Some(query)));
        write!(f, "{}://{}{path}", if self.tls { "https" } else { "http" }, self.at)?;
        for (number, parameter) in query.iter().flat_map(|query| query.split('&')).enumerate() {
            f.write_str(if number == 0 { "?" } else { "&" })?;
            match secret(parameter) {
                Some(name) => write!(f, "{name}={HIDDEN}")?,
                None => f.write_str(parameter)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SnapshotUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
    fn a_password_in_the_query_is_never_shown_and_what_is_shown_is_no_address() {
        for (query, shown) in [
            ("cmd=Snap&user=admin&password=x%20y", "cmd=Snap&user=admin&password=<hidden>"),
            ("loginuse=a&LoginPas=b", "loginuse=a&LoginPas=<hidden>"),
            ("auth_token=b&channel=1", "auth_token=<hidden>&channel=1"),
            ("a&pwd=b=c", "a&pwd=<hidden>"),
        ] {
            let url: SnapshotUrl = format!("http://10.0.0.7/a?{query}").parse().unwrap();
            let shown = format!("http://10.0.0.7:80/a?{shown}");
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.clone(), shown.clone()));
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
            assert!(url.has_secret() && url.path.ends_with(query));
            assert_eq!(shown.parse::<SnapshotUrl>(), Err(InvalidSnapshotUrl::Hidden));
        }
        let open: SnapshotUrl = "http://10.0.0.7/password=x?password=&channel=1".parse().unwrap();
        assert!(!open.has_secret() && open.to_string().ends_with("/password=x?password=&channel=1"));
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
        fn any_text_is_refused_or_read_as_what_it_is_written_as(text in "https?://(\\[)?[a-z0-9:.]{0,20}(\\])?(:[0-9]{0,5})?([/?]\\PC{0,10}([?&](pwd|a)=[a-z=]{0,2})?)?|\\PC*") {
            if let Ok(read) = text.parse::<SnapshotUrl>() {
                let again = read.to_string().parse();
                prop_assert_eq!(again, if read.has_secret() { Err(InvalidSnapshotUrl::Hidden) } else { Ok(read) });
            }
        }
    }
}
