//! Property tests: encoded tensors decode to the same tensors, in every form of the protocol.

use std::time::Instant;

use half::{bf16, f16};
use ledge_base::tensor::{DataType, Tensor};
use ledge_models::serving::request::CallInputs;
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::decode::{ReplyFormat, decode_request};
use super::fuzz::back;

/// Shapes of up to four dimensions, zero dimensions too.
fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0_usize..4, 0..4)
}

/// Tensors of every datatype that JSON can carry: floats are finite, strings Unicode.
fn tensors() -> impl Strategy<Value = Tensor> {
    (shapes(), prop::sample::select(DataType::ALL.to_vec())).prop_flat_map(|(shape, datatype)| {
        let count = shape.iter().product::<usize>();
        let words = prop::collection::vec(any::<u64>(), count);
        let texts = prop::collection::vec(any::<String>(), count);
        (words, texts).prop_map(move |(words, texts)| tensor(datatype, &shape, &words, &texts))
    })
}

/// A tensor made of random bits.
fn tensor(datatype: DataType, shape: &[usize], words: &[u64], texts: &[String]) -> Tensor {
    macro_rules! from_bits {
        ($convert:expr) => {
            Tensor::from_vec(shape.to_vec(), words.iter().map($convert).collect())
        };
    }
    match datatype {
        DataType::Bool => from_bits!(|word| word & 1 == 1),
        DataType::Uint8 => from_bits!(|word| word.to_le_bytes()[0]),
        DataType::Int8 => from_bits!(|word| word.to_le_bytes()[0].cast_signed()),
        DataType::Uint16 => from_bits!(|word| low16(*word)),
        DataType::Int16 => from_bits!(|word| low16(*word).cast_signed()),
        DataType::Uint32 => from_bits!(|word| low32(*word)),
        DataType::Int32 => from_bits!(|word| low32(*word).cast_signed()),
        DataType::Uint64 => from_bits!(|word| *word),
        DataType::Int64 => from_bits!(|word| word.cast_signed()),
        DataType::Fp16 => {
            from_bits!(|word| Some(f16::from_bits(low16(*word))).filter(|f| f.is_finite()).unwrap_or(f16::MAX))
        }
        DataType::Bf16 => {
            from_bits!(|word| Some(bf16::from_bits(low16(*word))).filter(|f| f.is_finite()).unwrap_or(bf16::MIN))
        }
        DataType::Fp32 => {
            from_bits!(|word| Some(f32::from_bits(low32(*word))).filter(|f| f.is_finite()).unwrap_or(-0.0))
        }
        DataType::Fp64 => {
            from_bits!(|word| Some(f64::from_bits(*word)).filter(|f| f.is_finite()).unwrap_or(f64::MIN_POSITIVE))
        }
        DataType::Bytes => Tensor::from_strings(shape.to_vec(), texts),
    }
    .unwrap()
}

fn low16(word: u64) -> u16 {
    u16::try_from(word & 0xffff).unwrap()
}

fn low32(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap()
}

/// The elements as JSON texts, from the encoder's flat array.
fn elements(tensor: &Tensor) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct RoundtripOutput {
        data: Vec<Box<RawValue>>,
    }
    #[derive(serde::Deserialize)]
    struct RoundtripResponse {
        outputs: Vec<RoundtripOutput>,
    }
    let response = super::fuzz::response(vec![("T".into(), tensor.clone())]);
    let body = super::encode::encode_response(&response, None, &ReplyFormat::JSON).unwrap().into_bytes().unwrap();
    let response: RoundtripResponse = serde_json::from_slice(&body).unwrap();
    response.outputs[0].data.iter().map(|element| element.get().to_owned()).collect()
}

/// Elements nested as their shape.
fn nested(shape: &[usize], elements: &[String]) -> String {
    let Some((dim, inner)) = shape.split_first() else { return elements[0].clone() };
    let step = inner.iter().product::<usize>();
    let entries = (0..*dim).map(|entry| nested(inner, &elements[entry * step..(entry + 1) * step]));
    format!("[{}]", entries.collect::<Vec<_>>().join(" , "))
}

proptest! {
    #[test]
    fn tensors_come_back_bit_for_bit(first in tensors(), second in tensors(), binary: [bool; 2]) {
        let inputs = vec![("a\"\u{e9}".to_owned(), first), ("b".to_owned(), second)];
        let named = inputs.iter().zip(binary).map(|((name, _), binary)| (name.clone(), binary)).collect();
        for format in [ReplyFormat::JSON, ReplyFormat::BINARY, ReplyFormat { binary: false, named }] {
            prop_assert_eq!(back(&inputs, &format).unwrap(), inputs.clone());
        }
    }

    #[test]
    fn neither_nesting_nor_the_order_of_keys_matters(
        tensor in tensors(),
        order in Just([0, 1, 2, 3, 4]).prop_shuffle(),
        flat: bool,
    ) {
        let elements = elements(&tensor);
        let shape = tensor.shape();
        let data = if flat || shape.is_empty() { format!("[{}]", elements.join(",")) } else { nested(shape, &elements) };
        let fields = [
            r#""name": "T""#.to_owned(),
            format!(r#""datatype": "{}""#, tensor.datatype()),
            format!(r#""shape": {shape:?}"#),
            format!(r#""data": {data}"#),
            r#""parameters": {"content_type": "np"}"#.to_owned(),
        ];
        let fields: Vec<_> = order.iter().map(|&field: &usize| fields[field].as_str()).collect();
        let body = format!(r#"{{"inputs": [{{{}}}]}}"#, fields.join(", "));
        let decoded = decode_request(&"m".parse().unwrap(), body.clone().into(), None, Instant::now());
        match decoded.map(|decoded| decoded.tensors.inputs) {
            Ok(CallInputs::Named(inputs)) => prop_assert_eq!(&inputs[0].1, &tensor, "{}", body),
            other => prop_assert!(false, "{body}: {other:?}"),
        }
    }
}
