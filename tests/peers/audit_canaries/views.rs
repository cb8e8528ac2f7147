//! Unpacks bytes that were sent, so that nothing hides in an encoding.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;

/// The most encodings that are unpacked, one inside the other.
const DEEPEST: usize = 3;

/// The beginning of a gzip stream (RFC 1952).
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// The bytes as they are, and their content: every gzip stream, and the texts behind escapes and line breaks.
pub fn views(sent: &[u8]) -> Vec<Vec<u8>> {
    let mut views = vec![sent.to_owned()];
    let mut from = 0;
    for _ in 0..DEEPEST {
        let last = views.len();
        for at in from..last {
            let view = views[at].clone();
            let inside =
                [unescaped(&view), percent_decoded(&view), without_breaks(&view)].into_iter().chain(inflated(&view));
            for inner in inside {
                if !views.contains(&inner) {
                    views.push(inner);
                }
            }
        }
        from = last;
    }
    views
}

/// Every gzip stream, as far as it goes.
fn inflated(bytes: &[u8]) -> Vec<Vec<u8>> {
    let starts = bytes.windows(GZIP.len()).enumerate().filter(|(_, window)| *window == GZIP);
    let inflate = |at: usize| {
        let mut inner = Vec::new();
        let _ = MultiGzDecoder::new(&bytes[at..]).read_to_end(&mut inner);
        inner
    };
    starts.map(|(at, _)| inflate(at)).filter(|inner| !inner.is_empty()).collect()
}

/// Decodes escapes of JSON.
fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            plain.push(*first);
            continue;
        }
        let Some((escape, after)) = rest.split_first() else { break };
        let character = match escape {
            b'u' => after.get(..4).and_then(hexadecimal).and_then(char::from_u32),
            b'n' => Some('\n'),
            b'r' => Some('\r'),
            b't' => Some('\t'),
            other => Some(char::from(*other)),
        };
        let Some(character) = character else {
            plain.push(b'\\');
            continue;
        };
        plain.extend(character.to_string().as_bytes());
        rest = &after[if *escape == b'u' { 4 } else { 0 }..];
    }
    plain
}

/// Decodes `%41` and `+` of queries.
fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let byte = (*first == b'%').then(|| after.get(..2)).flatten().and_then(hexadecimal);
        if let Some(byte) = byte.and_then(|byte| u8::try_from(byte).ok()) {
            plain.push(byte);
            rest = &after[2..];
        } else {
            plain.push(*first);
            rest = after;
        }
    }
    plain
}

/// Base64 in lines becomes one.
fn without_breaks(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| !b"\r\n\t ".contains(byte)).collect()
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
