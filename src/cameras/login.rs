//! The login of a camera: basic authentication (RFC 7617) or digest (RFC 7616), whichever the camera asks for.
//!
//! The only file that knows `http_auth`. A challenge is foreign bytes: one that is not understood is an error of this
//! picture only.

use std::fmt;

use http_auth::{PasswordClient, PasswordParams, parse_challenges};
use zeroize::Zeroizing;

/// The longest challenge that is read, in bytes.
const CHALLENGE_BYTES_MAX: usize = 4096;

/// The answers in a row to one digest challenge, after which the camera is asked for a new one. A camera counts them in
/// eight hexadecimal digits.
const ANSWERS_MAX: u32 = 100_000;

/// A user and the password.
pub struct CameraCredentials {
    pub user: String,
    pub password: Zeroizing<String>,
}

/// The reason why this box cannot log in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CameraLoginError {
    #[error("asks for a login: set `user` and `password_file`")]
    NoCredentials,
    #[error("asks for a login in a way that is neither basic nor digest authentication")]
    UnknownScheme,
    #[error("asks for a login in a way that this box does not understand: {0}")]
    NotUnderstood(String),
    #[error("asks for the password in plain text (basic authentication) after it was to be hashed (digest)")]
    Downgraded,
}

/// The challenge of a camera, to log in with each request without asking again.
pub struct DigestLogin {
    client: PasswordClient,
    answers: u32,
}

impl DigestLogin {
    /// Reads the challenges of an answer 401, the values of `WWW-Authenticate`. A digest is preferred: with basic
    /// authentication the password is sent as it is.
    pub fn read(challenges: &[String]) -> Result<Self, CameraLoginError> {
        let mut reason = None;
        let mut basic = None;
        for value in challenges.iter().filter(|value| value.len() <= CHALLENGE_BYTES_MAX) {
            let parsed = match parse_challenges(value) {
                Ok(parsed) => parsed,
                Err(error) => {
                    reason.get_or_insert(error.to_string());
                    continue;
                }
            };
            for challenge in &parsed {
                let is_digest = challenge.scheme.eq_ignore_ascii_case("digest");
                if !is_digest && !challenge.scheme.eq_ignore_ascii_case("basic") {
                    continue;
                }
                match PasswordClient::try_from(challenge) {
                    Ok(client) if is_digest => return Ok(Self { client, answers: 0 }),
                    Ok(client) => basic = Some(client),
                    Err(error) => {
                        reason.get_or_insert(error);
                    }
                }
            }
        }
        match (basic, reason) {
            (Some(client), _) => Ok(Self { client, answers: 0 }),
            (None, Some(reason)) => {
                let reason = reason.chars().filter(|char| !char.is_control()).take(200).collect();
                Err(CameraLoginError::NotUnderstood(reason))
            }
            (None, None) => Err(CameraLoginError::UnknownScheme),
        }
    }

    /// True if the password itself is sent, and not a hash.
    pub fn is_basic(&self) -> bool {
        matches!(self.client, PasswordClient::Basic(_))
    }

    /// The value of `Authorization` for a request; `None` once a new challenge is due.
    pub fn answer(&mut self, credentials: &CameraCredentials, path: &str) -> Option<Zeroizing<String>> {
        self.answers += 1;
        if self.answers > ANSWERS_MAX {
            return None;
        }
        let params = PasswordParams {
            username: &credentials.user,
            password: &credentials.password,
            uri: path,
            method: "GET",
            body: Some(&[]),
        };
        self.client.respond(&params).ok().map(Zeroizing::new)
    }
}

/// Reads any text as a challenge and answers it, for the fuzzers; true for a challenge that can be answered. The answer
/// can be sent, and does not hold the password where it is hashed.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_login(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data).into_owned();
    let Ok(mut login) = DigestLogin::read(&[text]) else { return false };
    let credentials = CameraCredentials { user: "user".to_owned(), password: Zeroizing::new("SECRET-WORD".to_owned()) };
    let Some(answer) = login.answer(&credentials, "/picture") else { return false };
    assert!(!answer.contains(['\r', '\n', '\0']), "{answer:?}");
    assert!(login.is_basic() || !answer.contains("SECRET-WORD"), "{answer:?}");
    true
}

impl fmt::Debug for DigestLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DigestLogin").field("is_basic", &self.is_basic()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CameraCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CameraCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn credentials(user: &str, password: &str) -> CameraCredentials {
        CameraCredentials { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) }
    }

    fn read(challenges: &[&str]) -> Result<DigestLogin, CameraLoginError> {
        DigestLogin::read(&challenges.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn basic_authentication_is_that_of_rfc_7617() {
        let mut login = read(&["Basic realm=\"WallyWorld\""]).unwrap();
        let answer = login.answer(&credentials("Aladdin", "open sesame"), "/").unwrap();
        assert!(login.is_basic() && *answer == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "{answer:?}");
    }

    #[test]
    fn a_digest_counts_its_answers_and_is_preferred_to_basic() {
        let digest = "Digest realm=\"IP Camera\", qop=\"auth\", nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\"";
        for challenges in [&["Basic realm=\"IP Camera\"", digest][..], &[digest, "Basic realm=\"IP Camera\""]] {
            let mut login = read(challenges).unwrap();
            assert!(!login.is_basic());
            let mut answer = || login.answer(&credentials("admin", "secret"), "/a?b=1").unwrap();
            let (first, second) = (answer(), answer());
            assert!(first.contains("uri=\"/a?b=1\"") && first.contains("nc=00000001"), "{first:?}");
            assert!(second.contains("nc=00000002") && !second.contains("secret"), "{second:?}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_an_error_with_its_reason() {
        assert_eq!(read(&[]).unwrap_err(), CameraLoginError::UnknownScheme);
        assert_eq!(read(&["Bearer realm=\"a\""]).unwrap_err(), CameraLoginError::UnknownScheme);
        for challenge in ["Digest realm=\"a\"", "Digest realm=\"a\", nonce=\"b\", algorithm=MD9", "Digest realm=\"a"] {
            assert!(matches!(read(&[challenge]), Err(CameraLoginError::NotUnderstood(_))), "{challenge}");
        }
        let long = format!("Basic realm=\"{}\"", "a".repeat(CHALLENGE_BYTES_MAX));
        assert_eq!(read(&[&long]).unwrap_err(), CameraLoginError::UnknownScheme);
    }

    proptest! {
        #[test]
        fn any_challenge_is_answered_or_refused(text in "(Digest|Basic) (realm|nonce|qop|algorithm|opaque|stale|userhash|charset)=\"?\\PC{0,20}\"?(, (realm|nonce|qop|algorithm|opaque)=\"\\PC{0,12}\"){0,4}|\\PC*") {
            fuzz_login(text.as_bytes());
        }
    }
}
