//! Requests as bytes that are made once: a body for any protocol, and the HTTP request with it.

use std::ops::Range;

use anyhow::Context;
use ledge_base::tensor::{DataType, Tensor, to_f64};
use ledge_engine::pipeline::image::ImageFormat;
use serde_json::{Map, Value, json};

use super::inputs::{self, Payload, STAMPED_ELEMENTS};
use super::random::Random;

/// The width in characters of an element in JSON that `--unique` writes again.
const SLOT_WIDTH: usize = 10;

/// The bytes of one HTTP request: its head and body.
#[derive(Debug, Clone)]
pub struct Request {
    pub bytes: Vec<u8>,
    stamps: Vec<Stamp>,
}

/// The body of a request, for any protocol.
#[derive(Debug, Clone)]
pub struct Body {
    pub bytes: Vec<u8>,
    pub content_type: &'static str,
    /// The length of the JSON, if binary tensor data follow it.
    pub header_length: Option<usize>,
    stamps: Vec<Stamp>,
}

/// Bytes that `--unique` draws again for each request. Their length never changes.
#[derive(Debug, Clone)]
struct Stamp {
    place: Range<usize>,
    kind: StampKind,
}

#[derive(Debug, Clone, Copy)]
enum StampKind {
    /// The bytes of a tensor.
    Binary(DataType),
    /// Elements in JSON, each of `SLOT_WIDTH` characters and a comma.
    Json(DataType),
    /// The letters of a comment.
    Letters,
}

/// The encoding of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The binary tensor data extension, both ways.
    Binary,
    /// Numbers in JSON, both ways.
    Json,
}

impl Body {
    /// The body of a request with `payload`. With `unique`, [`Self::stamp`] makes it a different one.
    pub fn new(payload: &Payload, encoding: Encoding, unique: bool) -> anyhow::Result<Self> {
        Ok(match payload {
            Payload::Photo(photo) => {
                let content_type =
                    ImageFormat::sniff(photo).map_or("application/octet-stream", ImageFormat::content_type);
                let (bytes, stamps) = if unique {
                    let (bytes, place) = inputs::with_comment(photo)?;
                    (bytes, vec![Stamp { place, kind: StampKind::Letters }])
                } else {
                    (photo.to_vec(), Vec::new())
                };
                Self { bytes, content_type, header_length: None, stamps }
            }
            Payload::Tensors(tensors) if encoding == Encoding::Json => {
                let (bytes, stamps) = json_body(tensors, unique)?;
                Self { bytes, content_type: "application/json", header_length: None, stamps }
            }
            Payload::Tensors(tensors) => {
                let (bytes, stamps, length) = binary_body(tensors);
                Self { bytes, content_type: "application/octet-stream", header_length: Some(length), stamps }
            }
        })
    }

    /// Makes it a different body of the same length.
    pub fn stamp(&mut self, random: &mut Random) {
        stamp(&mut self.bytes, &self.stamps, random);
    }
}

impl Request {
    /// A request to `path` of the server `host`. With `unique`, [`Self::stamp`] makes it a different one.
    pub fn new(host: &str, path: &str, payload: &Payload, encoding: Encoding, unique: bool) -> anyhow::Result<Self> {
        let Body { bytes: body, content_type, header_length, mut stamps } = Body::new(payload, encoding, unique)?;
        let header = |length: usize| format!("inference-header-content-length: {length}\r\n");
        let header_length = header_length.map(header).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {content_type}\r\n{header_length}\
             content-length: {length}\r\n\r\n"
        );
        for stamp in &mut stamps {
            stamp.place = stamp.place.start + head.len()..stamp.place.end + head.len();
        }
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        Ok(Self { bytes, stamps })
    }

    /// Makes it a different request of the same length.
    pub fn stamp(&mut self, random: &mut Random) {
        stamp(&mut self.bytes, &self.stamps, random);
    }
}

fn stamp(bytes: &mut [u8], stamps: &[Stamp], random: &mut Random) {
    for Stamp { place, kind } in stamps {
        let Some(bytes) = bytes.get_mut(place.clone()) else { continue };
        match kind {
            StampKind::Binary(datatype) => inputs::fill(bytes, *datatype, STAMPED_ELEMENTS, random),
            StampKind::Json(datatype) => {
                for slot in bytes.chunks_mut(SLOT_WIDTH + 1) {
                    write_slot(slot, *datatype, random);
                }
            }
            StampKind::Letters => bytes.fill_with(|| random.letter()),
        }
    }
}

/// The JSON followed by the bytes of each tensor, and the length of the JSON.
fn binary_body(tensors: &[(String, Tensor)]) -> (Vec<u8>, Vec<Stamp>, usize) {
    let entry = |(name, tensor): &(String, Tensor)| {
        json!({
            "name": name, "datatype": tensor.datatype(), "shape": tensor.shape(),
            "parameters": {"binary_data_size": tensor.data().len()},
        })
    };
    let inputs: Vec<Value> = tensors.iter().map(entry).collect();
    let mut body = json!({"inputs": inputs, "parameters": {"binary_data_output": true}}).to_string().into_bytes();
    let (header_length, mut stamps) = (body.len(), Vec::new());
    for (_, tensor) in tensors {
        let start = body.len();
        body.extend_from_slice(tensor.data());
        stamps.push(Stamp { place: start..body.len(), kind: StampKind::Binary(tensor.datatype()) });
    }
    (body, stamps, header_length)
}

/// The body with the elements in JSON. With `unique` the first elements have slots of one width.
fn json_body(tensors: &[(String, Tensor)], unique: bool) -> anyhow::Result<(Vec<u8>, Vec<Stamp>)> {
    let (mut body, mut stamps) = (br#"{"inputs":["#.to_vec(), Vec::new());
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let head = Map::from_iter([
            ("name".to_owned(), json!(name)),
            ("datatype".to_owned(), json!(tensor.datatype())),
            ("shape".to_owned(), json!(tensor.shape())),
        ]);
        let mut head = serde_json::to_vec(&Value::Object(head))?;
        head.pop();
        body.extend_from_slice(&head);
        body.extend_from_slice(br#","data":["#);
        let elements = elements(tensor).with_context(|| format!("input {name:?} cannot be written as JSON"))?;
        let slots = if unique { elements.len().min(STAMPED_ELEMENTS) } else { 0 };
        let start = body.len();
        for (index, element) in elements.iter().enumerate() {
            if index < slots {
                body.extend_from_slice(&[b' '; SLOT_WIDTH]);
            } else {
                body.extend_from_slice(element.as_bytes());
            }
            body.push(b',');
        }
        let end = start + slots * (SLOT_WIDTH + 1);
        if slots > 0 {
            stamps.push(Stamp { place: start..end, kind: StampKind::Json(tensor.datatype()) });
        }
        if !elements.is_empty() {
            body.pop();
        }
        body.extend_from_slice(b"]}");
    }
    body.extend_from_slice(b"]}");
    // Fills the slots: empty ones are not JSON.
    stamp(&mut body, &stamps, &mut Random::fresh());
    Ok((body, stamps))
}

/// The elements of a tensor as JSON texts; `None` for strings that are not UTF-8.
fn elements(tensor: &Tensor) -> Option<Vec<String>> {
    if let Some(strings) = tensor.strings() {
        return strings.map(|string| serde_json::to_string(std::str::from_utf8(string).ok()?).ok()).collect();
    }
    if let Some(floats) = tensor.elements::<f32>() {
        return floats.iter().map(|float| serde_json::to_string(float).ok()).collect();
    }
    if let Some(bools) = tensor.bools() {
        return Some(bools.iter().map(ToString::to_string).collect());
    }
    if let Some(integers) = tensor.elements::<u64>() {
        return Some(integers.iter().map(ToString::to_string).collect());
    }
    if let Some(integers) = tensor.elements::<i64>() {
        return Some(integers.iter().map(ToString::to_string).collect());
    }
    // The other datatypes fit an f64. Its whole numbers are written without a fraction.
    Some(to_f64(tensor)?.iter().map(ToString::to_string).collect())
}

/// Writes a random element into the first `SLOT_WIDTH` characters of `slot`.
fn write_slot(slot: &mut [u8], datatype: DataType, random: &mut Random) {
    let text = match datatype {
        DataType::Bytes => {
            let letters: String = (0..SLOT_WIDTH - 2).map(|_| char::from(random.letter())).collect();
            format!("\"{letters}\"")
        }
        DataType::Bool => (random.below(2) == 1).to_string(),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => format!("{:.6}", random.unit() * 0.999),
        _ => random.below(100).to_string(),
    };
    for (place, byte) in slot.iter_mut().take(SLOT_WIDTH).zip(text.bytes().chain(std::iter::repeat(b' '))) {
        *place = byte;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use ledge_engine::backend::ModelPort;
    use ledge_models::serving::request::CallInputs;
    use ledge_protocol::decode::decode_request;

    /// The inputs of a request as the server decodes them.
    fn decoded_inputs(request: &Request) -> Vec<(String, Tensor)> {
        let end = request.bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let head = std::str::from_utf8(&request.bytes[..end]).unwrap();
        let number = |header: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(header))?;
            line.strip_prefix(": ")?.parse::<usize>().ok()
        };
        let body = Bytes::copy_from_slice(&request.bytes[end..]);
        assert_eq!(number("content-length"), Some(body.len()));
        let length = number("inference-header-content-length");
        let decoded = decode_request(&"m".parse().unwrap(), body, length, Instant::now()).unwrap();
        let CallInputs::Named(inputs) = decoded.tensors.inputs else { panic!("named tensors") };
        inputs
    }

    proptest! {
        #[test]
        fn the_server_decodes_the_same_tensors_and_each_stamp_differs(
            picks in prop::collection::vec(0_usize..14, 1..4), rows in 8_usize..30, json: bool, unique: bool,
        ) {
            let ports: Vec<ModelPort> = picks.iter().enumerate().map(|(index, &pick)| ModelPort {
                name: format!("in\"{index}"), datatype: DataType::ALL[pick], shape: vec![-1, 8],
            }).collect();
            let shapes = vec![vec![rows, 8]; ports.len()];
            let payload = inputs::random(&ports, &shapes, &mut Random::seeded(5)).unwrap();
            let encoding = if json { Encoding::Json } else { Encoding::Binary };
            let mut request = Request::new("h", "/p", &payload, encoding, unique).unwrap();
            let Payload::Tensors(tensors) = &payload else { panic!("tensors") };
            let first = decoded_inputs(&request);
            if !(json && unique) {
                prop_assert_eq!(&first, tensors);
            }
            if unique {
                request.stamp(&mut Random::seeded(9));
                let second = decoded_inputs(&request);
                for ((one, two), port) in first.iter().zip(&second).zip(&ports) {
                    prop_assert_eq!(one.1.shape(), two.1.shape());
                    prop_assert_ne!(one.1.data(), two.1.data(), "{:?}", port);
                }
            }
        }
    }
}
