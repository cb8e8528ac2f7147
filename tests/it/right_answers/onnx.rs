//! As much of `onnx.proto3` as the random models are made of.

use prost::Message;

/// A file in opset 13.
#[derive(Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opsets: Vec<Opset>,
}

#[derive(Message)]
struct Opset {
    #[prost(int64, tag = "2")]
    version: i64,
}

/// Nodes in their order, weights, inputs and one output.
#[derive(Message)]
pub struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    weights: Vec<Weight>,
    #[prost(message, repeated, tag = "11")]
    inputs: Vec<Port>,
    #[prost(message, repeated, tag = "12")]
    outputs: Vec<Port>,
}

#[derive(Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    outputs: Vec<String>,
    #[prost(string, tag = "4")]
    op: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

#[derive(Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    value: i64,
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Message)]
struct Weight {
    #[prost(int64, repeated, tag = "1")]
    shape: Vec<i64>,
    #[prost(int32, tag = "2")]
    datatype: i32,
    #[prost(float, repeated, tag = "4")]
    floats: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    integers: Vec<i64>,
    #[prost(string, tag = "8")]
    name: String,
}

#[derive(Message)]
struct Port {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    type_: Option<Type>,
}

#[derive(Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    datatype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Dims>,
}

#[derive(Message)]
struct Dims {
    #[prost(message, repeated, tag = "1")]
    dims: Vec<Dim>,
}

#[derive(Message)]
struct Dim {
    #[prost(int64, optional, tag = "1")]
    size: Option<i64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const IS_INTEGER: i32 = 2;

impl Graph {
    /// A graph without a node.
    pub fn new() -> Self {
        Self { name: "right answers".to_owned(), ..Self::default() }
    }

    /// An input of floats of two variable dimensions.
    pub fn floats_in(&mut self, name: &str) {
        self.inputs.push(port(name, FLOAT, &[None, None]));
    }

    /// An input of integers with these dimensions; `None` is variable.
    pub fn integers_in(&mut self, name: &str, shape: &[Option<i64>]) {
        self.inputs.push(port(name, INT64, shape));
    }

    pub fn floats(&mut self, name: &str, shape: &[i64], floats: &[f32]) {
        let (shape, floats) = (shape.to_vec(), floats.to_vec());
        self.weights.push(Weight { name: name.to_owned(), shape, datatype: FLOAT, floats, integers: vec![] });
    }

    pub fn integers(&mut self, name: &str, integers: &[i64]) {
        let (shape, integers) = (vec![integers.len().try_into().unwrap()], integers.to_vec());
        self.weights.push(Weight { name: name.to_owned(), shape, datatype: INT64, floats: vec![], integers });
    }

    pub fn node(&mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, i64)]) {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let attribute = |&(name, value): &(&str, i64)| Attribute { name: name.to_owned(), value, kind: IS_INTEGER };
        self.nodes.push(Node {
            op: op.to_owned(),
            inputs: owned(inputs),
            outputs: owned(outputs),
            attributes: attributes.iter().map(attribute).collect(),
        });
    }

    /// The file, with the value `output` as its output: floats of two dimensions, of which the second may be known.
    pub fn file(mut self, output: &str, cols: Option<i64>) -> Vec<u8> {
        self.outputs.push(port(output, FLOAT, &[None, cols]));
        Model { ir_version: 8, graph: Some(self), opsets: vec![Opset { version: 13 }] }.encode_to_vec()
    }
}

fn port(name: &str, datatype: i32, shape: &[Option<i64>]) -> Port {
    let dim = |(place, size): (usize, &Option<i64>)| Dim {
        size: *size,
        name: size.is_none().then(|| format!("{name}_{place}")),
    };
    let dims = shape.iter().enumerate().map(dim).collect();
    let tensor = TensorType { datatype, shape: Some(Dims { dims }) };
    Port { name: name.to_owned(), type_: Some(Type { tensor: Some(tensor) }) }
}
