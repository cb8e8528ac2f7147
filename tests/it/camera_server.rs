//! `CameraServer`: a network camera of a few lines. It serves scripted pictures over HTTP with digest authentication,
//! basic authentication, or none.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use image::codecs::jpeg::JpegEncoder;
use image::{ImageFormat, RgbImage};
use md5::{Digest, Md5};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::certificates::Identity;

/// The user and the password of every camera.
pub const USER: &str = "ledge";
pub const PASSWORD: &str = "a long password";

const REALM: &str = "IP Camera";

/// The authentication of a camera.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Login {
    None,
    Basic,
    Digest,
}

/// Several cameras behind one port, each below `/NAME.jpg`.
pub struct CameraServer {
    pub port: u16,
    scheme: &'static str,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cameras: HashMap<String, Script>,
    nonces: u32,
    /// Requests that were refused for want of a login.
    refused: usize,
    is_away: bool,
}

struct Script {
    /// The answer to the next request; `None` closes its connection without one.
    next: Box<dyn FnMut() -> Option<Arc<[u8]>> + Send>,
    served: usize,
}

impl CameraServer {
    /// Listens on a free port until the process of the test ends.
    pub fn start(login: Login) -> Self {
        Self::listen("http", move |stream, state| converse(stream, login, state))
    }

    /// The same, over TLS and without a login. It presents this certificate.
    pub fn start_tls(identity: &Identity) -> Self {
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
        Self::listen("https", move |stream, state| {
            let connection = ServerConnection::new(config.clone()).unwrap();
            converse(StreamOwned::new(connection, stream), Login::None, state);
        })
    }

    fn listen(scheme: &'static str, converse: impl Fn(TcpStream, &Mutex<State>) + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state, converse) = (stream.unwrap(), shared.clone(), converse.clone());
                std::thread::spawn(move || converse(stream, &state));
            }
        });
        Self { port, scheme, state }
    }

    /// Sets the pictures of a camera, which come one after the other; the last one stays.
    pub fn show(&self, name: &str, pictures: impl IntoIterator<Item = Arc<[u8]>>) {
        let pictures: Vec<_> = pictures.into_iter().collect();
        let mut place = 0;
        self.answer(name, move || {
            let picture = pictures.get(place).or(pictures.last()).cloned();
            place += 1;
            picture
        });
    }

    /// Answers each request for a picture of a camera with what this returns. `None` closes the connection.
    pub fn answer(&self, name: &str, next: impl FnMut() -> Option<Arc<[u8]>> + Send + 'static) {
        let script = Script { next: Box::new(next), served: 0 };
        self.state.lock().unwrap().cameras.insert(name.to_owned(), script);
    }

    /// The number of pictures that a camera has served.
    pub fn served(&self, name: &str) -> usize {
        self.state.lock().unwrap().cameras.get(name).map_or(0, |script| script.served)
    }

    /// The number of requests that lacked a valid login.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    /// Closes each connection without an answer, until it is set back.
    pub fn set_away(&self, is_away: bool) {
        self.state.lock().unwrap().is_away = is_away;
    }

    pub fn url(&self, name: &str) -> String {
        format!("{}://127.0.0.1:{}/{name}.jpg", self.scheme, self.port)
    }
}

fn converse(stream: impl Read + Write, login: Login, state: &Mutex<State>) {
    let mut stream = BufReader::new(stream);
    let mut nonce = String::new();
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if !matches!(stream.read_line(&mut line), Ok(1..)) {
                return;
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let path = head[0].split(' ').nth(1).unwrap().to_owned();
        let authorization = head.iter().find_map(|line| line.strip_prefix("authorization: "));
        let mut state = state.lock().unwrap();
        if state.is_away {
            return;
        }
        let is_in = match login {
            Login::None => true,
            Login::Basic => authorization == Some("Basic bGVkZ2U6YSBsb25nIHBhc3N3b3Jk"),
            Login::Digest => authorization.is_some_and(|answer| is_right(answer, &path, &nonce)),
        };
        if !is_in {
            state.refused += 1;
            state.nonces += 1;
            nonce = format!("nonce-{}", state.nonces);
            drop(state);
            let challenge = match login {
                Login::Digest => format!("Digest realm=\"{REALM}\", qop=\"auth\", algorithm=MD5, nonce=\"{nonce}\""),
                _ => format!("Basic realm=\"{REALM}\""),
            };
            let answer =
                format!("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 0\r\n\r\n");
            if send(stream.get_mut(), &[answer.as_bytes()]).is_err() {
                return;
            }
            continue;
        }

        let name = path.trim_start_matches('/').trim_end_matches(".jpg");
        let picture = match state.cameras.get_mut(name) {
            Some(script) => {
                let Some(picture) = (script.next)() else { return };
                script.served += 1;
                Some(picture)
            }
            None => None,
        };
        drop(state);
        let (status, body) = match &picture {
            Some(picture) => ("200 OK", &picture[..]),
            None => ("404 Not Found", &b"no such camera"[..]),
        };
        let content_type = match image::guess_format(body) {
            Ok(format) => format.to_mime_type(),
            Err(_) => "text/html",
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n");
        if send(stream.get_mut(), &[head.as_bytes(), body]).is_err() {
            return;
        }
    }
}

fn send(stream: &mut impl Write, parts: &[&[u8]]) -> std::io::Result<()> {
    parts.iter().try_for_each(|part| stream.write_all(part))?;
    stream.flush()
}

/// Checks a digest (RFC 7616, section 3.4.1, with MD5 and the quality of protection `auth`).
fn is_right(answer: &str, path: &str, nonce: &str) -> bool {
    let fields: HashMap<&str, &str> = answer
        .trim_start_matches("Digest ")
        .split(", ")
        .filter_map(|field| field.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim_matches('"')))
        .collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    let hash = |text: String| format!("{:x}", Md5::digest(text.as_bytes()));
    let secret = hash(format!("{USER}:{REALM}:{PASSWORD}"));
    let request = hash(format!("GET:{path}"));
    let expected = hash(format!("{secret}:{nonce}:{}:{}:auth:{request}", field("nc"), field("cnonce")));
    field("username") == USER && field("nonce") == nonce && field("uri") == path && field("response") == expected
}

/// A grey picture with coloured quarters, as `colour_detector` finds them: red, green or blue, from the upper left one
/// in rows. `noise` makes its bytes different from those of other pictures that show the same.
pub fn picture(quarters: [&str; 4], size: (u32, u32), noise: u32) -> Arc<[u8]> {
    picture_as(ImageFormat::Jpeg, quarters, size, noise)
}

/// The same in any format.
pub fn picture_as(format: ImageFormat, quarters: [&str; 4], (width, height): (u32, u32), noise: u32) -> Arc<[u8]> {
    let pixel = |x: u32, y: u32| {
        let quarter = quarters[usize::from(y >= height / 2) * 2 + usize::from(x >= width / 2)];
        // Some texture, as pictures have.
        let gray = 60 + u8::try_from((x / 16 + y / 16) % 4 * 10).unwrap();
        let mut bits = (x * 7919 + y * 104_729 + noise).wrapping_mul(0x9E37_79B9);
        bits ^= bits >> 15;
        let gray = gray + u8::try_from(bits % 5).unwrap();
        match quarter {
            "red" => [250, gray, gray],
            "green" => [gray, 250, gray],
            "blue" => [gray, gray, 250],
            _ => [gray; 3],
        }
    };
    let pixels: Vec<u8> = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    let picture = RgbImage::from_raw(width, height, pixels).unwrap();
    let mut encoded = Cursor::new(Vec::new());
    match format {
        ImageFormat::Jpeg => picture.write_with_encoder(JpegEncoder::new_with_quality(&mut encoded, 85)).unwrap(),
        format => picture.write_to(&mut encoded, format).unwrap(),
    }
    encoded.into_inner().into()
}
