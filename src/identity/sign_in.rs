//! The texts of a sign-in: the code that a person copies from the box, and the two halves of a session.
//!
//! A session needs two halves, because a cookie goes to every port of a host: the *cookie*, which no script can read,
//! and the *token*, which the page keeps for its own origin and sends as a header. Both name the session by its id.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The prefix of the cookie's name. Browsers accept a name with `__Host-` only from the host itself, over an encrypted
/// connection, and for all its paths (RFC 6265bis, 4.1.3.2).
pub const COOKIE_PREFIX: &str = "__Host-ledge-";

const SECRET_BYTES: usize = 32;
const ID_DIGITS: usize = 8;

/// The letters of a code: Crockford's base 32, which has no I, L, O and U.
const CODE_LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// 13 letters of five bits: 65 bits, which nobody guesses in five minutes.
const CODE_CHARS: usize = 13;

/// A code with which a person signs in once. `Debug` hides it: only [`SignInCode::reveal`] writes it out.
#[derive(Clone, PartialEq, Eq)]
pub struct SignInCode([u8; CODE_CHARS]);

/// A text that is not a code. The error does not contain the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sign-in code has {CODE_CHARS} letters and digits, as `ledge login` prints them")]
pub struct InvalidSignInCode;

impl SignInCode {
    /// Makes a code from the system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; CODE_CHARS];
        getrandom::fill(&mut random)?;
        // 256 is a multiple of 32, so each letter is as likely as the others.
        Ok(Self(random.map(|byte| CODE_LETTERS.get(usize::from(byte % 32)).copied().unwrap_or(b'0'))))
    }

    /// The code in groups, as a person copies it.
    pub fn reveal(&self) -> String {
        let (first, rest) = self.0.split_at(4);
        let (second, third) = rest.split_at(4);
        [first, second, third].map(String::from_utf8_lossy).join("-")
    }

    /// Its hash, by which the daemon knows it. `blake3::Hash` compares in constant time.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.0)
    }
}

impl FromStr for SignInCode {
    type Err = InvalidSignInCode;

    /// Reads what a person typed: in upper or lower case, with spaces and hyphens anywhere, O for 0, and I or L for 1.
    fn from_str(text: &str) -> Result<Self, InvalidSignInCode> {
        let mut letters = text.chars().filter(|letter| !matches!(letter, ' ' | '-')).map(|letter| {
            let letter = match letter.to_ascii_uppercase() {
                'O' => '0',
                'I' | 'L' => '1',
                other => other,
            };
            u8::try_from(letter).ok().filter(|letter| CODE_LETTERS.contains(letter)).ok_or(InvalidSignInCode)
        });
        let mut code = [0; CODE_CHARS];
        for place in &mut code {
            *place = letters.next().ok_or(InvalidSignInCode)??;
        }
        if letters.next().is_some() { Err(InvalidSignInCode) } else { Ok(Self(code)) }
    }
}

impl fmt::Debug for SignInCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignInCode")
    }
}

/// The name of a session, which is no secret: 32 random bits, as eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u32);

/// A text that is not the id of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected eight hexadecimal digits (0-9, a-f)")]
pub struct InvalidSessionId;

impl SessionId {
    /// Makes an id from the system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut id = [0; 4];
        getrandom::fill(&mut id)?;
        Ok(Self(u32::from_be_bytes(id)))
    }

    /// The name of its cookie.
    pub fn cookie_name(self) -> String {
        format!("{COOKIE_PREFIX}{self}")
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = (is_hex && text.len() == ID_DIGITS).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(InvalidSessionId)
    }
}

/// One half of a session: 256 random bits. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret([u8; SECRET_BYTES]);

impl SessionSecret {
    /// Makes one from the system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self(secret))
    }

    /// Reads one. A secret has exactly one text.
    fn parse(presented: &[u8]) -> Option<Self> {
        let mut secret = [0; SECRET_BYTES];
        matches!(URL_SAFE_NO_PAD.decode_slice(presented, &mut secret), Ok(SECRET_BYTES)).then_some(Self(secret))
    }

    /// The secret as text, for its holder.
    pub fn reveal(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Its hash, by which the daemon knows it.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.0)
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret")
    }
}

/// Both halves of a session.
#[derive(Debug, Clone)]
pub struct SessionHalves {
    pub id: SessionId,
    pub cookie: SessionSecret,
    pub token: SessionSecret,
}

impl SessionHalves {
    /// Makes the halves of a new session.
    pub fn generate(id: SessionId) -> Result<Self, getrandom::Error> {
        Ok(Self { id, cookie: SessionSecret::generate()?, token: SessionSecret::generate()? })
    }

    /// Reads the value `ID.TOKEN` of the header, and the cookie of that session among those of the request. `None` for a
    /// malformed value, and where there is not exactly one such cookie.
    pub fn read<'h>(header: &[u8], cookies: impl Iterator<Item = &'h [u8]>) -> Option<Self> {
        let (id, token) = header.split_at_checked(ID_DIGITS)?;
        let id: SessionId = std::str::from_utf8(id).ok()?.parse().ok()?;
        let token = SessionSecret::parse(token.strip_prefix(b".")?)?;
        let name = id.cookie_name();
        let value = |pair: &'h [u8]| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        let mut values = cookies.flat_map(|header| header.split(|byte| *byte == b';')).filter_map(value);
        let cookie = SessionSecret::parse(values.next()?)?;
        values.next().is_none().then_some(Self { id, cookie, token })
    }
}

/// Reads codes and sessions for the fuzzers; true when one is read.
///
/// # Panics
///
/// When something that was read has another form when it is written.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_sign_in(data: &[u8]) -> bool {
    let code = std::str::from_utf8(data).ok().and_then(|text| text.parse::<SignInCode>().ok());
    if let Some(code) = &code {
        assert_eq!(code.reveal().parse().as_ref(), Ok(code));
    }
    let (header, cookies) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len()));
    let session = SessionHalves::read(header, [cookies].into_iter());
    if let Some(SessionHalves { id, cookie, token }) = &session {
        assert_eq!(format!("{id}.{}", token.reveal()).as_bytes(), header);
        let pair = format!("{}={}", id.cookie_name(), cookie.reveal());
        assert!(cookies.windows(pair.len()).any(|window| window == pair.as_bytes()));
    }
    code.is_some() || session.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_code_is_read_as_people_type_it() {
        let code = SignInCode(*b"K7QM3T9XW0R1A");
        assert_eq!(code.reveal(), "K7QM-3T9X-W0R1A");
        for typed in ["K7QM-3T9X-W0R1A", "k7qm3t9xworla", " K7QM 3T9X WORIA ", "K-7-Q-M-3-T-9-X-W-0-R-1-A"] {
            assert_eq!(typed.parse(), Ok(code.clone()), "{typed}");
        }
        for wrong in ["", "K7QM-3T9X-W0R1", "K7QM-3T9X-W0R1AA", "U7QM-3T9X-W0R1A", "K7QM_3T9X_W0R1A", "Ä7QM-3T9X-W0R1A"]
        {
            assert_eq!(wrong.parse::<SignInCode>(), Err(InvalidSignInCode), "{wrong}");
        }
        assert_eq!(format!("{code:?}"), "SignInCode");
        assert_ne!(SignInCode::generate().unwrap(), SignInCode::generate().unwrap());
    }

    fn read(header: &str, cookies: &[&str]) -> Option<(String, String)> {
        let found = SessionHalves::read(header.as_bytes(), cookies.iter().map(|cookie| cookie.as_bytes()))?;
        Some((found.cookie.reveal(), found.token.reveal()))
    }

    #[test]
    fn a_session_has_its_own_cookie_exactly_once() {
        let (cookie, token) = ("A".repeat(43), "Q".repeat(42) + "g");
        let header = format!("0123abcd.{token}");
        let own = format!("__Host-ledge-0123abcd={cookie}");
        let other = format!("__Host-ledge-0123abce={cookie}");
        let both = Some((cookie.clone(), token.clone()));
        assert_eq!(read(&header, &[&own]), both);
        assert_eq!(read(&header, &[&format!("theme=dark; {other};{own} ; x")]), both);
        assert_eq!(read(&header, &["a=b", &own]), both);
        for cookies in [
            &[][..],
            &[&*other],
            &[&*own, &*own],
            &[&format!("{own}; {own}")],
            &[&format!("{own}A")],
            &[&own.to_lowercase()],
            &[&own.replace('=', " =")],
        ] {
            assert_eq!(read(&header, cookies), None, "{cookies:?}");
        }
        for header in ["", "0123abcd", "0123abcd.", "0123ABCD.AA", &format!("{header}="), &format!(" {header}")] {
            assert_eq!(read(header, &[&own]), None, "{header}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_read_that_is_written_otherwise(data: Vec<u8>) {
            fuzz_sign_in(&data);
        }

        #[test]
        fn what_is_written_is_read(id: u32, cookie: [u8; SECRET_BYTES], token: [u8; SECRET_BYTES]) {
            let (id, cookie, token) = (SessionId(id), SessionSecret(cookie), SessionSecret(token));
            let data = format!("{id}.{}\n {}={}", token.reveal(), id.cookie_name(), cookie.reveal());
            prop_assert!(fuzz_sign_in(data.as_bytes()));
        }
    }
}
