//! Outputs that are maps from classes to scores, one for each row, made into tensors.
//!
//! scikit-learn's converter ends a classifier with the operator `ZipMap`, which makes the maps from a tensor and from
//! class names in the file. Ledge carries tensors, so ONNX Runtime gets a copy of the model with an Identity in place
//! of each `ZipMap`. All other bytes of the copy are those of the file.

use std::collections::HashMap;

use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::backend::ZipMapOutput;
use crate::onnx::protos::{GraphProto, NodeProto, ValueInfoProto};

// Field numbers of `onnx.proto3`.
const MODEL_GRAPH: u32 = 7;
const GRAPH_NODE: u32 = 1;
const GRAPH_OUTPUT: u32 = 12;
const GRAPH_VALUE_INFO: u32 = 13;

/// ONNX's number of the datatype of the scores, which are never others.
const FLOAT: i32 = 1;

/// The most classes of a map that are read.
const CLASSES_MAX: usize = 1 << 20;

/// The class names of a `ZipMap`.
#[derive(Message)]
struct ZipMap {
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<ClassesAttributeProto>,
}

#[derive(Message)]
struct ClassesAttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, repeated, tag = "8")]
    ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    strings: Vec<Vec<u8>>,
}

/// The parts of a node that show whether it makes a map.
#[derive(Message)]
struct ZipMapNodeProto {
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
}

/// The declaration of a tensor.
#[derive(Message)]
struct WrittenValueInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<WrittenTypeProto>,
}

#[derive(Message)]
struct WrittenTypeProto {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<WrittenTensorTypeProto>,
}

#[derive(Message)]
struct WrittenTensorTypeProto {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<WrittenShapeProto>,
}

#[derive(Message)]
struct WrittenShapeProto {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<WrittenDimProto>,
}

/// A dimension; 0 is not written, which means one of any length.
#[derive(Message)]
struct WrittenDimProto {
    #[prost(int64, tag = "1")]
    dim_value: i64,
}

/// The maps of `graph`, the main graph of the model in `bytes`, that [`rewrite`] can make tensors of.
pub(super) fn find(bytes: &[u8], graph: &GraphProto) -> Vec<ZipMapOutput> {
    let has_maps = graph.node.iter().any(|node| node.op_type == "ZipMap");
    // A graph within this one could read a map.
    let mut attributes = graph.node.iter().flat_map(|node| &node.attribute);
    if !has_maps || attributes.any(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty()) {
        return Vec::new();
    }
    // Parts of a message that is there twice are merged by a reader. No writer does that.
    let Some(Some([content])) = fields(bytes).map(|fields| {
        let graphs = fields.iter().filter(|field| field.number == MODEL_GRAPH).map(|field| field.content);
        <[&[u8]; 1]>::try_from(graphs.collect::<Vec<_>>()).ok()
    }) else {
        return Vec::new();
    };
    let raw = fields(content).unwrap_or_default().into_iter().filter(|field| field.number == GRAPH_NODE);
    let mut uses: HashMap<&str, ValueUses> = HashMap::new();
    for node in &graph.node {
        node.input.iter().for_each(|name| uses.entry(name).or_default().reads += 1);
        node.output.iter().for_each(|name| uses.entry(name).or_default().writes += 1);
    }
    graph.output.iter().for_each(|port| uses.entry(&port.name).or_default().outputs += 1);
    let uses = |name: &str| uses.get(name).copied().unwrap_or_default();
    let maps = graph.node.iter().zip(raw).filter_map(|(node, raw)| class_map(uses, node, raw.content));
    maps.collect()
}

/// Counts of the places that name a value.
#[derive(Clone, Copy, Default)]
struct ValueUses {
    reads: usize,
    writes: usize,
    outputs: usize,
}

fn class_map(uses: impl Fn(&str) -> ValueUses, node: &NodeProto, raw: &[u8]) -> Option<ZipMapOutput> {
    let ([scores], [output]) = (node.input.as_slice(), node.output.as_slice()) else { return None };
    let ValueUses { reads, writes, outputs } = uses(output);
    let (is_written_once, is_read, is_output) = (writes == 1, reads > 0, outputs == 1);
    if node.op_type != "ZipMap" || node.domain != "ai.onnx.ml" || !is_output || is_read || !is_written_once {
        return None;
    }

    let attributes = ZipMap::decode(raw).ok()?.attribute;
    let named = |name| attributes.iter().filter(move |attribute: &&ClassesAttributeProto| attribute.name == name);
    let numbers = named("classlabels_int64s").flat_map(|attribute| attribute.ints.iter().map(i64::to_string));
    let mut classes: Vec<String> = numbers.collect();
    for name in named("classlabels_strings").flat_map(|attribute| &attribute.strings) {
        classes.push(String::from_utf8(name.clone()).ok()?);
    }
    let distinct: std::collections::HashSet<_> = classes.iter().collect();
    let is_sound = (1..=CLASSES_MAX).contains(&classes.len()) && distinct.len() == classes.len();
    is_sound.then(|| ZipMapOutput { output: output.clone(), scores: scores.clone(), classes })
}

/// The model in `bytes` with a tensor in place of each of `maps`; `None` if it is not the model that they were found
/// in.
pub(crate) fn rewrite(bytes: &[u8], maps: &[ZipMapOutput]) -> Option<Vec<u8>> {
    let mut model = Vec::with_capacity(bytes.len());
    for field in fields(bytes)? {
        match field.number {
            MODEL_GRAPH => write(&mut model, MODEL_GRAPH, &graph(field.content, maps)?),
            _ => model.extend_from_slice(field.whole),
        }
    }
    Some(model)
}

fn graph(bytes: &[u8], maps: &[ZipMapOutput]) -> Option<Vec<u8>> {
    let of = |output: &str| maps.iter().find(|map| map.output == output);
    let (mut graph, mut nodes, mut outputs) = (Vec::with_capacity(bytes.len()), 0, 0);
    for field in fields(bytes)? {
        match field.number {
            GRAPH_NODE => {
                let node = ZipMapNodeProto::decode(field.content).ok()?;
                if node.op_type == "ZipMap"
                    && let Some(map) = node.output.first().and_then(|name| of(name))
                {
                    nodes += 1;
                    write(&mut graph, GRAPH_NODE, &identity(map).encode_to_vec());
                    continue;
                }
            }
            GRAPH_OUTPUT | GRAPH_VALUE_INFO => {
                let port = ValueInfoProto::decode(field.content).ok()?;
                if let Some(map) = of(&port.name) {
                    if field.number == GRAPH_OUTPUT {
                        outputs += 1;
                        write(&mut graph, GRAPH_OUTPUT, &floats(map)?.encode_to_vec());
                    }
                    continue;
                }
                if field.number == GRAPH_OUTPUT
                    && let Some(label) = one_label(field.content)
                {
                    write(&mut graph, GRAPH_OUTPUT, &label.encode_to_vec());
                    continue;
                }
            }
            _ => {}
        }
        graph.extend_from_slice(field.whole);
    }
    (nodes == maps.len() && outputs == maps.len()).then_some(graph)
}

fn identity(map: &ZipMapOutput) -> NodeProto {
    NodeProto {
        input: vec![map.scores.clone()],
        output: vec![map.output.clone()],
        op_type: "Identity".to_owned(),
        ..NodeProto::default()
    }
}

fn floats(map: &ZipMapOutput) -> Option<WrittenValueInfoProto> {
    let classes = i64::try_from(map.classes.len()).ok()?;
    let shape =
        WrittenShapeProto { dim: vec![WrittenDimProto { dim_value: 0 }, WrittenDimProto { dim_value: classes }] };
    let floats = WrittenTensorTypeProto { elem_type: FLOAT, shape: Some(shape) };
    Some(WrittenValueInfoProto {
        name: map.output.clone(),
        r#type: Some(WrittenTypeProto { tensor_type: Some(floats) }),
    })
}

/// The declaration of an output `[1]`, as one of any length: the converter of `LightGBM` writes a length of 1 for the
/// labels of all rows. A runtime would warn at each run.
fn one_label(port: &[u8]) -> Option<WrittenValueInfoProto> {
    let mut port = WrittenValueInfoProto::decode(port).ok()?;
    let shape = port.r#type.as_mut()?.tensor_type.as_mut()?.shape.as_mut()?;
    let [only] = shape.dim.as_mut_slice() else { return None };
    (std::mem::take(&mut only.dim_value) == 1).then_some(port)
}

fn write(message: &mut Vec<u8>, number: u32, content: &[u8]) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(content.len() as u64, message);
    message.extend_from_slice(content);
}

/// One field of a message, as it is in the file.
struct ProtobufField<'a> {
    number: u32,
    /// With its key.
    whole: &'a [u8],
    /// A string, bytes or a message; empty for a number.
    content: &'a [u8],
}

/// The fields of a message. `None` for bytes that are not a message, and for groups, which no ONNX file has.
fn fields(bytes: &[u8]) -> Option<Vec<ProtobufField<'_>>> {
    let (mut rest, mut fields) = (bytes, Vec::new());
    while !rest.is_empty() {
        let start = rest;
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let (skipped, content) = match wire_type {
            WireType::Varint => {
                decode_varint(&mut rest).ok()?;
                (0, &[][..])
            }
            WireType::SixtyFourBit => (8, &[][..]),
            WireType::ThirtyTwoBit => (4, &[][..]),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                (length, rest.get(..length)?)
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        rest = rest.get(skipped..)?;
        let whole = start.get(..start.len() - rest.len())?;
        fields.push(ProtobufField { number, whole, content });
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::super::{ModelProto, summarize};
    use super::*;

    /// A classifier of two classes, as scikit-learn's converter ends one. The attribute `classes` is written by hand,
    /// because the reader's own attributes have no strings.
    fn model(attribute: ClassesAttributeProto, domain: &str) -> Vec<u8> {
        let zip = NodeProto {
            input: vec!["scores".into()],
            output: vec!["chances".into()],
            op_type: "ZipMap".into(),
            domain: domain.into(),
            ..NodeProto::default()
        };
        let mut zip = zip.encode_to_vec();
        zip.extend(ZipMap { attribute: vec![attribute] }.encode_to_vec());
        let mut graph = Vec::new();
        write(&mut graph, GRAPH_NODE, &zip);
        for name in ["label", "chances"] {
            let port = ValueInfoProto { name: name.into(), r#type: None };
            write(&mut graph, GRAPH_OUTPUT, &port.encode_to_vec());
        }
        let mut model = ModelProto::default().encode_to_vec();
        write(&mut model, MODEL_GRAPH, &graph);
        model
    }

    fn strings(names: &[&str]) -> ClassesAttributeProto {
        let strings = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        ClassesAttributeProto { name: "classlabels_strings".into(), ints: vec![], strings }
    }

    fn classes(attribute: ClassesAttributeProto, domain: &str) -> Vec<Vec<String>> {
        let maps = summarize(&model(attribute, domain)).unwrap().class_maps;
        maps.into_iter().map(|map| map.classes).collect()
    }

    #[test]
    fn a_map_is_replaced_by_the_tensor_that_it_is_made_of() {
        let file = model(strings(&["yes", "no"]), "ai.onnx.ml");
        let found = summarize(&file).unwrap();
        let map = ZipMapOutput {
            output: "chances".into(),
            scores: "scores".into(),
            classes: vec!["yes".into(), "no".into()],
        };
        assert_eq!(found.class_maps, [map]);

        let rewritten = rewrite(&file, &found.class_maps).unwrap();
        let graph = ModelProto::decode(rewritten.as_slice()).unwrap().graph.unwrap();
        assert_eq!((graph.node[0].op_type.as_str(), graph.node[0].domain.as_str()), ("Identity", ""));
        assert_eq!((&graph.node[0].input, &graph.node[0].output), (&vec!["scores".into()], &vec!["chances".into()]));
        let datatype = |port: &ValueInfoProto| Some(port.r#type.as_ref()?.tensor_type.as_ref()?.elem_type);
        assert_eq!(graph.output.iter().map(datatype).collect::<Vec<_>>(), [None, Some(FLOAT)]);
        assert_eq!(summarize(&rewritten).unwrap().port_names, found.port_names);
        assert!(super::super::fuzz_onnx(&file));
        assert_eq!(rewrite(&rewritten, &found.class_maps), None, "a file that has no such map");
    }

    #[test]
    fn a_map_is_left_alone_where_its_classes_are_not_sure() {
        let numbers = |ints| ClassesAttributeProto { name: "classlabels_int64s".into(), ints, strings: vec![] };
        assert_eq!(classes(numbers(vec![3, -1]), "ai.onnx.ml"), [["3", "-1"]]);
        assert!(classes(numbers(vec![]), "ai.onnx.ml").is_empty(), "no classes");
        assert!(classes(numbers(vec![1, 1]), "ai.onnx.ml").is_empty(), "one class twice");
        assert!(classes(strings(&["a"]), "").is_empty(), "another operator of that name");
        let no_text = ClassesAttributeProto { strings: vec![vec![0xff]], ..strings(&[]) };
        assert!(classes(no_text, "ai.onnx.ml").is_empty(), "a name that is no text");

        let mut twice = model(strings(&["a"]), "ai.onnx.ml");
        write(&mut twice, MODEL_GRAPH, &[]);
        assert!(summarize(&twice).unwrap().class_maps.is_empty(), "a graph in two parts");
    }
}
