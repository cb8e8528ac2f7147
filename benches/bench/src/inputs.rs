//! The inputs of requests: random tensors in the shapes of the model's inputs, or a file.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::Bytes;
use ledge_base::names::ModelName;
use ledge_base::tensor::{DataType, Tensor, element_count, push_string};
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_engine::pipeline::file_format::{FileFormat, UnexpectedFile};
use ledge_engine::pipeline::image::ImageFormat;
use ledge_models::serving::request::CallInputs;
use ledge_protocol::decode;

use super::random::Random;

/// The number of elements of each input that `--unique` draws again for each request: enough to make every request
/// different, few enough to cost no time.
pub const STAMPED_ELEMENTS: usize = 64;

/// The length of a random string in characters.
const STRING_LENGTH: usize = 8;

/// The inputs of one request, independent of a protocol.
#[derive(Debug, Clone)]
pub enum Payload {
    Tensors(Vec<(String, Tensor)>),
    /// An encoded photograph, as a camera sends it.
    Photo(Bytes),
}

/// `name:1,3,224,224`: the shape of one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputShape {
    pub input: String,
    /// The dimensions, including the batch.
    pub shape: Vec<usize>,
}

impl std::str::FromStr for InputShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once(':').and_then(|(input, dims)| {
            let shape: Result<Vec<usize>, _> = dims.split(',').map(str::parse).collect();
            let shape = shape.ok().filter(|_| !input.is_empty())?;
            Some(Self { input: input.to_owned(), shape })
        });
        parsed.ok_or_else(|| "expected INPUT:DIM,DIM,..., such as data:1,3,224,224".to_owned())
    }
}

/// The shape of each input of a request: the one in `shapes`, or the model's shape with `batch` as the batch and 1 for
/// other variable dimensions.
pub fn shapes(
    ports: &[ModelPort],
    batched: bool,
    batch: usize,
    shapes: &[InputShape],
) -> anyhow::Result<Vec<Vec<usize>>> {
    if let Some(unknown) = shapes.iter().find(|shape| !ports.iter().any(|port| port.name == shape.input)) {
        let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        bail!("--shape {}: the model has no such input; it has {}", unknown.input, names.join(", "));
    }
    let one = |port: &ModelPort| {
        if let Some(given) = shapes.iter().find(|shape| shape.input == port.name) {
            let fits = given.shape.len() == port.shape.len()
                && given.shape.iter().zip(&port.shape).all(|(&dim, &own)| own < 0 || usize::try_from(own) == Ok(dim));
            anyhow::ensure!(
                fits,
                "--shape {}:{:?} does not fit the model's shape {:?}",
                port.name,
                given.shape,
                port.shape
            );
            return Ok(given.shape.clone());
        }
        let dims = port.shape.iter().enumerate().map(|(axis, &dim)| match usize::try_from(dim) {
            Ok(dim) => dim,
            Err(_) if axis == 0 && batched => batch,
            Err(_) => 1,
        });
        let dims: Vec<usize> = dims.collect();
        if batch > 1 && (!batched || dims.first() != Some(&batch)) {
            bail!("--batch {batch}: input {:?} has the shape {:?}, without a variable batch", port.name, port.shape);
        }
        Ok(dims)
    };
    ports.iter().map(one).collect()
}

/// Random inputs: floats from 0 to 1, 8-bit integers of every value, other integers from 0 to 99 so that they are valid
/// as class or token numbers, strings of eight letters.
pub fn random(ports: &[ModelPort], shapes: &[Vec<usize>], random: &mut Random) -> anyhow::Result<Payload> {
    let tensor = |(port, shape): (&ModelPort, &Vec<usize>)| {
        let count = element_count(shape).with_context(|| format!("input {:?}: {shape:?} is too large", port.name))?;
        let mut data = Vec::new();
        match port.datatype.size() {
            Some(size) => data.resize(count.checked_mul(size).context("the inputs are too large")?, 0),
            None => (0..count).for_each(|_| push_string(&mut data, &[b'a'; STRING_LENGTH])),
        }
        fill(&mut data, port.datatype, count, random);
        let tensor = Tensor::new(port.datatype, shape.clone(), data.into())?;
        Ok((port.name.clone(), tensor))
    };
    let tensors: anyhow::Result<Vec<_>> = ports.iter().zip(shapes).map(tensor).collect();
    Ok(Payload::Tensors(tensors?))
}

/// Writes random values over the first `count` elements of a tensor's bytes; strings keep their lengths.
pub fn fill(data: &mut [u8], datatype: DataType, count: usize, random: &mut Random) {
    let Some(size) = datatype.size() else {
        return fill_strings(data, count, random);
    };
    for element in data.chunks_exact_mut(size).take(count) {
        #[expect(clippy::cast_possible_truncation, reason = "a number in 0 to 1, rounded")]
        match datatype {
            DataType::Fp32 => element.copy_from_slice(&(random.unit() as f32).to_le_bytes()),
            DataType::Fp64 => element.copy_from_slice(&random.unit().to_le_bytes()),
            DataType::Fp16 => element.copy_from_slice(&half::f16::from_f64(random.unit()).to_le_bytes()),
            DataType::Bf16 => element.copy_from_slice(&half::bf16::from_f64(random.unit()).to_le_bytes()),
            DataType::Bool => element.fill(random.below(2)),
            DataType::Uint8 | DataType::Int8 => element.fill(random.below(256)),
            DataType::Uint16
            | DataType::Uint32
            | DataType::Uint64
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64 => {
                element.fill(0);
                // Little-endian: the first byte is the lowest.
                element.iter_mut().take(1).for_each(|byte| *byte = random.below(100));
            }
            DataType::Bytes => {}
        }
    }
}

fn fill_strings(mut data: &mut [u8], count: usize, random: &mut Random) {
    for _ in 0..count {
        let Some((length, rest)) = data.split_first_chunk_mut::<4>() else { return };
        let Some((string, rest)) = rest.split_at_mut_checked(u32::from_le_bytes(*length) as usize) else { return };
        string.fill_with(|| random.letter());
        data = rest;
    }
}

/// The inputs in a file: a photograph, or the JSON of an inference request.
pub fn file(model: &ModelName, path: &Path) -> anyhow::Result<Payload> {
    let cannot_use = || format!("cannot use the file {}", path.display());
    let content = Bytes::from(std::fs::read(path).with_context(cannot_use)?);
    match FileFormat::of(&content) {
        Some(FileFormat::Image(_)) => return Ok(Payload::Photo(content)),
        Some(_) => return Err(UnexpectedFile::new(PipelineInput::Photograph, &content)).with_context(cannot_use),
        None => {}
    }
    match decode::decode_request(model, content, None, Instant::now()).with_context(cannot_use)?.tensors.inputs {
        CallInputs::Named(tensors) => Ok(Payload::Tensors(tensors)),
        CallInputs::Raw(_) => bail!("{} is not an inference request", path.display()),
    }
}

impl Payload {
    /// A different request of the same form, for `--unique`.
    pub fn stamped(&self, random: &mut Random) -> anyhow::Result<Self> {
        match self {
            Self::Tensors(tensors) => {
                let stamped = tensors.iter().map(|(name, tensor)| {
                    let mut data = tensor.data().to_vec();
                    fill(&mut data, tensor.datatype(), STAMPED_ELEMENTS, random);
                    Ok((name.clone(), Tensor::new(tensor.datatype(), tensor.shape().to_vec(), data.into())?))
                });
                Ok(Self::Tensors(stamped.collect::<anyhow::Result<_>>()?))
            }
            Self::Photo(photo) => {
                let (mut bytes, place) = with_comment(photo)?;
                bytes.get_mut(place).into_iter().flatten().for_each(|byte| *byte = random.letter());
                Ok(Self::Photo(bytes.into()))
            }
        }
    }

    /// A description for the report.
    pub fn describe(&self) -> String {
        match self {
            Self::Tensors(tensors) => {
                let one =
                    |(name, tensor): &(String, Tensor)| format!("{name} {} {:?}", tensor.datatype(), tensor.shape());
                tensors.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            Self::Photo(photo) => {
                let kind = ImageFormat::sniff(photo).map_or("?", ImageFormat::content_type);
                format!("a photograph ({kind}, {} kB)", photo.len() / 1000)
            }
        }
    }
}

/// A JPEG with a comment of 16 letters at its start, which changes the bytes and not the picture; and the place of the
/// letters.
pub fn with_comment(photo: &[u8]) -> anyhow::Result<(Vec<u8>, std::ops::Range<usize>)> {
    let Some(rest) = photo.strip_prefix(&[0xFF, 0xD8]) else {
        bail!("--unique needs a JPEG: other photographs cannot be changed without decoding them");
    };
    // COM, and its length, which includes the two bytes of the length itself.
    let head = [0xFF, 0xD8, 0xFF, 0xFE, 0, 18];
    Ok(([&head[..], &[b'a'; 16], rest].concat(), head.len()..head.len() + 16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(name: &str, datatype: DataType, shape: &[i64]) -> ModelPort {
        ModelPort { name: name.into(), datatype, shape: shape.to_vec() }
    }

    #[test]
    fn variable_dimensions_are_one_but_for_the_batch() {
        let ports = [port("a", DataType::Fp32, &[-1, 3, -1]), port("b", DataType::Int64, &[-1])];
        assert_eq!(shapes(&ports, true, 4, &[]).unwrap(), [vec![4, 3, 1], vec![4]]);
        assert_eq!(shapes(&ports, false, 1, &["a:2,3,9".parse().unwrap()]).unwrap(), [vec![2, 3, 9], vec![1]]);
        let reason =
            |batched, batch, given: &[InputShape]| shapes(&ports, batched, batch, given).unwrap_err().to_string();
        assert!(reason(false, 2, &[]).contains("without a variable batch"));
        assert!(reason(true, 1, &["c:1".parse().unwrap()]).contains("it has a, b"));
        assert!(reason(true, 1, &["a:1,4,1".parse().unwrap()]).contains("does not fit"));
    }

    #[test]
    fn a_shape_names_its_input() {
        let parsed: InputShape = "data:0:1,3".parse().unwrap();
        assert_eq!(parsed, InputShape { input: "data:0".into(), shape: vec![1, 3] });
        for wrong in ["", "x", ":1", "x:", "x:1,,2", "x:-1"] {
            assert!(wrong.parse::<InputShape>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_comment_leaves_the_picture_as_it_is() {
        let photo = include_bytes!("../../../tests/data/photos/chelsea.jpg");
        let Payload::Photo(stamped) =
            Payload::Photo(Bytes::from_static(photo)).stamped(&mut Random::seeded(1)).unwrap()
        else {
            panic!("a photograph stays one")
        };
        let decode = |bytes: &[u8]| {
            ledge_engine::pipeline::image::decode(
                bytes,
                ledge_engine::pipeline::image::DecodeLimits { max_pixels: 1 << 24 },
            )
            .unwrap()
        };
        assert_ne!(stamped, &photo[..]);
        assert_eq!(decode(&stamped).pixels(), decode(photo).pixels());
        assert!(with_comment(b"\x89PNG").is_err());
    }

    proptest! {
        #[test]
        fn every_datatype_gets_valid_tensors_that_differ_when_stamped(pick in 0_usize..14, rows in 8_usize..40) {
            let port = port("x", DataType::ALL[pick], &[-1, 8]);
            let mut numbers = Random::seeded(3);
            let payload = random(&[port], &[vec![rows, 8]], &mut numbers).unwrap();
            let other = payload.stamped(&mut numbers).unwrap();
            let (Payload::Tensors(one), Payload::Tensors(two)) = (&payload, &other) else { panic!("tensors") };
            prop_assert_ne!(one[0].1.data(), two[0].1.data());
            prop_assert_eq!(one[0].1.shape(), two[0].1.shape());
        }
    }
}
