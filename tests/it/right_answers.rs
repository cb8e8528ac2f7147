//! Each call gets its own right answer: random models are compared with the same models in plain Rust, in both
//! runtimes, with calls in between that must fail.

mod onnx;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};
use crate::feature_faults::seed::Random;
use onnx::Graph;

#[derive(Debug, Clone, PartialEq)]
struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    /// Small whole numbers: sums are exact in any order of additions.
    fn random(random: &mut Random) -> Self {
        let (rows, cols) = (1 + random.below(3_usize), 1 + random.below(6_usize));
        Self { rows, cols, data: numbers(random, rows * cols) }
    }

    fn of(rows: usize, cols: usize, element: impl Fn(usize, usize) -> f32) -> Self {
        let data = (0..rows * cols).map(|place| element(place / cols, place % cols)).collect();
        Self { rows, cols, data }
    }

    fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row % self.rows * self.cols + col % self.cols]
    }

    /// Both stretched to one shape, as numpy does.
    fn broadcast(&self, rows: usize, cols: usize) -> Option<(usize, usize)> {
        let common = |a: usize, b: usize| (a == b || a == 1 || b == 1).then(|| a.max(b));
        Some((common(self.rows, rows)?, common(self.cols, cols)?))
    }
}

fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| f32::from(i8::try_from(random.below(19_u64)).unwrap() - 9)).collect()
}

/// One step of a model, which makes a matrix of a matrix; some take another input, and most refuse some shapes.
#[derive(Debug, Clone)]
enum Step {
    Relu,
    Shift(f32),
    SumRows,
    Transpose,
    Add,
    Concat,
    Reshape,
    Expand,
    GatherElements,
    Convolve(Vec<f32>),
    TopK(usize),
    /// A step of text encoders: adds the first rows of a table.
    Positions(Vec<f32>),
    MatMul(Matrix),
}

/// The operand of a step besides the matrix.
#[derive(Debug, Clone)]
enum Extra {
    Nothing,
    Matrix(Matrix),
    Shape(usize, usize),
    Columns(usize, usize, Vec<usize>),
}

impl Step {
    const KINDS: u64 = 13;

    fn of_kind(kind: u64, random: &mut Random) -> Self {
        match kind {
            0 => Self::Relu,
            1 => Self::Shift(numbers(random, 1)[0]),
            2 => Self::SumRows,
            3 => Self::Transpose,
            4 => Self::Add,
            5 => Self::Concat,
            6 => Self::Reshape,
            7 => Self::Expand,
            8 => Self::GatherElements,
            9 => Self::Convolve(numbers(random, 3)),
            10 => Self::TopK(2 + random.below(2_usize)),
            11 => Self::Positions(numbers(random, 4)),
            _ => Self::MatMul(Matrix { rows: 3, cols: 2, data: numbers(random, 6) }),
        }
    }

    fn extra(&self, random: &mut Random) -> Extra {
        match self {
            Self::Add | Self::Concat => Extra::Matrix(Matrix::random(random)),
            Self::Reshape | Self::Expand => Extra::Shape(1 + random.below(4_usize), 1 + random.below(6_usize)),
            Self::GatherElements => {
                let (rows, cols) = (1 + random.below(3_usize), 1 + random.below(4_usize));
                Extra::Columns(rows, cols, (0..rows * cols).map(|_| random.below(3_usize)).collect())
            }
            _ => Extra::Nothing,
        }
    }

    /// Adds the step to a graph, between the values `from` and `to`.
    fn add_to(&self, graph: &mut Graph, from: &str, to: &str) {
        let own = |name: &str| format!("{to}_{name}");
        let (extra, a, b) = (own("extra"), own("a"), own("b"));
        match self {
            Self::Relu => graph.node("Relu", &[from], &[to], &[]),
            Self::Shift(by) => {
                graph.floats(&a, &[1], &[*by]);
                graph.node("Add", &[from, &a], &[to], &[]);
            }
            Self::SumRows => {
                graph.integers(&a, &[1]);
                graph.node("ReduceSum", &[from, &a], &[to], &[("keepdims", 1)]);
            }
            Self::Transpose => graph.node("Transpose", &[from], &[to], &[]),
            Self::Add | Self::Concat => {
                graph.floats_in(&extra);
                let is_add = matches!(self, Self::Add);
                let (op, attributes) = if is_add { ("Add", &[][..]) } else { ("Concat", &[("axis", 1)][..]) };
                graph.node(op, &[from, &extra], &[to], attributes);
            }
            Self::Reshape | Self::Expand => {
                graph.integers_in(&extra, &[Some(2)]);
                let op = if matches!(self, Self::Reshape) { "Reshape" } else { "Expand" };
                graph.node(op, &[from, &extra], &[to], &[]);
            }
            Self::GatherElements => {
                graph.integers_in(&extra, &[None, None]);
                graph.node("GatherElements", &[from, &extra], &[to], &[("axis", 1)]);
            }
            Self::Convolve(kernel) => {
                let (axes, weight) = (own("axes"), own("weight"));
                graph.integers(&axes, &[1]);
                graph.floats(&weight, &[1, 1, i64::try_from(kernel.len()).unwrap()], kernel);
                graph.node("Unsqueeze", &[from, &axes], &[&a], &[]);
                graph.node("Conv", &[&a, &weight], &[&b], &[]);
                graph.node("Squeeze", &[&b, &axes], &[to], &[]);
            }
            Self::TopK(k) => {
                graph.integers(&a, &[i64::try_from(*k).unwrap()]);
                graph.node("TopK", &[from, &a], &[to, &b], &[("axis", 1)]);
            }
            Self::Positions(table) => {
                let (shape, zero, one, two) = (own("shape"), own("zero"), own("one"), own("two"));
                graph.floats(&a, &[i64::try_from(table.len()).unwrap()], table);
                for (name, value) in [(&zero, 0), (&one, 1), (&two, 2)] {
                    graph.integers(name, &[value]);
                }
                graph.node("Shape", &[from], &[&shape], &[]);
                graph.node("Slice", &[&shape, &one, &two], &[&own("length")], &[]);
                graph.node("Slice", &[&a, &zero, &own("length")], &[&b], &[]);
                graph.node("Add", &[from, &b], &[to], &[]);
            }
            Self::MatMul(matrix) => {
                let shape = [matrix.rows, matrix.cols].map(|dim| i64::try_from(dim).unwrap());
                graph.floats(&a, &shape, &matrix.data);
                graph.node("MatMul", &[from, &a], &[to], &[]);
            }
        }
    }

    /// The same in Rust; `None` where the shapes do not fit.
    fn apply(&self, x: &Matrix, extra: &Extra) -> Option<Matrix> {
        let (rows, cols) = (x.rows, x.cols);
        Some(match (self, extra) {
            (Self::Relu, _) => Matrix::of(rows, cols, |row, col| x.at(row, col).max(0.0)),
            (Self::Shift(by), _) => Matrix::of(rows, cols, |row, col| x.at(row, col) + by),
            (Self::SumRows, _) => Matrix::of(rows, 1, |row, _| (0..cols).map(|col| x.at(row, col)).sum()),
            (Self::Transpose, _) => Matrix::of(cols, rows, |row, col| x.at(col, row)),
            (Self::Add, Extra::Matrix(y)) => {
                let (rows, cols) = x.broadcast(y.rows, y.cols)?;
                Matrix::of(rows, cols, |row, col| x.at(row, col) + y.at(row, col))
            }
            (Self::Concat, Extra::Matrix(y)) if y.rows == rows => {
                Matrix::of(
                    rows,
                    cols + y.cols,
                    |row, col| {
                        if col < cols { x.at(row, col) } else { y.at(row, col - cols) }
                    },
                )
            }
            (Self::Reshape, &Extra::Shape(to_rows, to_cols)) if to_rows * to_cols == rows * cols => {
                Matrix { rows: to_rows, cols: to_cols, data: x.data.clone() }
            }
            (Self::Expand, &Extra::Shape(to_rows, to_cols)) => {
                let (rows, cols) = x.broadcast(to_rows, to_cols)?;
                Matrix::of(rows, cols, |row, col| x.at(row, col))
            }
            (Self::GatherElements, Extra::Columns(to_rows, to_cols, columns)) => {
                let fits = *to_rows == rows && columns.iter().all(|&column| column < cols);
                fits.then(|| Matrix::of(rows, *to_cols, |row, col| x.at(row, columns[row * to_cols + col])))?
            }
            (Self::Convolve(kernel), _) => {
                let sum = |row, col| kernel.iter().enumerate().map(|(k, weight)| weight * x.at(row, col + k)).sum();
                Matrix::of(rows, (cols + 1).checked_sub(kernel.len()).filter(|&cols| cols > 0)?, sum)
            }
            (Self::TopK(k), _) if *k <= cols => {
                let sorted = |row: usize| {
                    let mut values = x.data[row * cols..(row + 1) * cols].to_vec();
                    values.sort_by(|a, b| b.total_cmp(a));
                    values
                };
                Matrix::of(rows, *k, |row, col| sorted(row)[col])
            }
            (Self::Positions(table), _) if cols <= table.len() => {
                Matrix::of(rows, cols, |row, col| x.at(row, col) + table[col])
            }
            (Self::MatMul(matrix), _) if cols == matrix.rows => {
                Matrix::of(rows, matrix.cols, |row, col| (0..cols).map(|k| x.at(row, k) * matrix.at(k, col)).sum())
            }
            _ => return None,
        })
    }

    /// Returns `true` if one runtime may answer where the other does not: ONNX Runtime takes indices for only the first
    /// rows, OpenVINO convolves a row that is one too short to nothing.
    fn may_be_answered(&self, x: &Matrix, extra: &Extra) -> bool {
        match (self, extra) {
            (Self::GatherElements, Extra::Columns(rows, ..)) => *rows < x.rows,
            (Self::Convolve(kernel), _) => x.cols + 1 == kernel.len(),
            _ => false,
        }
    }
}

/// The expected outcome of a call.
#[derive(Debug)]
enum Want {
    Answer(Matrix),
    Error,
    /// The runtimes do not agree; such a call only disturbs the others.
    Anything,
}

fn want(steps: &[Step], x: &Matrix, extras: &[Extra]) -> Want {
    let mut x = x.clone();
    for (place, (step, extra)) in steps.iter().zip(extras).enumerate() {
        // OpenVINO makes one step of it and the next, which then stretches more than the first would.
        let is_merged = matches!(step, Step::Expand) && place + 1 < steps.len();
        match step.apply(&x, extra) {
            Some(next) => x = next,
            None if is_merged || step.may_be_answered(&x, extra) => return Want::Anything,
            None => return Want::Error,
        }
    }
    Want::Answer(x)
}

fn file(steps: &[Step]) -> Vec<u8> {
    let mut graph = Graph::new();
    graph.floats_in("v0");
    for (place, step) in steps.iter().enumerate() {
        step.add_to(&mut graph, &format!("v{place}"), &format!("v{}", place + 1));
    }
    // With a known length of the answer a run may be brief, on the thread that read the call.
    let cols = match steps.last() {
        Some(Step::SumRows) => Some(1),
        Some(Step::TopK(k)) => Some(*k),
        Some(Step::MatMul(matrix)) => Some(matrix.cols),
        _ => None,
    };
    graph.file(&format!("v{}", steps.len()), cols.map(|cols| i64::try_from(cols).unwrap()))
}

fn request(x: &Matrix, extras: &[Extra]) -> Value {
    let floats = |name: String, matrix: &Matrix| json!({"name": name, "datatype": "FP32", "shape": [matrix.rows, matrix.cols], "data": matrix.data});
    let extra = |(place, extra): (usize, &Extra)| {
        let name = format!("v{}_extra", place + 1);
        Some(match extra {
            Extra::Nothing => return None,
            Extra::Matrix(matrix) => floats(name, matrix),
            Extra::Shape(rows, cols) => {
                json!({"name": name, "datatype": "INT64", "shape": [2], "data": [rows, cols]})
            }
            Extra::Columns(rows, cols, columns) => {
                json!({"name": name, "datatype": "INT64", "shape": [rows, cols], "data": columns})
            }
        })
    };
    let inputs = [floats("v0".to_owned(), x)].into_iter().chain(extras.iter().enumerate().filter_map(extra));
    json!({"inputs": inputs.collect::<Vec<_>>()})
}

/// A random call, and its right answer.
fn draw(steps: &[Step], random: &mut Random) -> (Matrix, Vec<Extra>, Want) {
    let x = Matrix::random(random);
    let extras: Vec<Extra> = steps.iter().map(|step| step.extra(random)).collect();
    let want = want(steps, &x, &extras);
    (x, extras, want)
}

/// Calls `model` once, and judges the answer.
fn ask(client: &mut Client, model: &str, steps: &[Step], random: &mut Random) {
    // Random shapes seldom fit: for every other call some that do are looked for.
    let tries = if random.one_in(2) { 1 } else { 50 };
    let mut call = draw(steps, random);
    for _ in 1..tries {
        if matches!(call.2, Want::Answer(_)) {
            break;
        }
        call = draw(steps, random);
    }
    let (x, extras, want) = call;
    let answer = client.post_json(&format!("/v2/models/{model}/infer"), &request(&x, &extras));
    let told = || format!("{model} {steps:?}\n{x:?} {extras:?}\n{answer:?}");
    match want {
        Want::Answer(right) => {
            assert_eq!(answer.status, 200, "{}", told());
            let output = answer.json()["outputs"][0].clone();
            assert_eq!(output["shape"], json!([right.rows, right.cols]), "{}", told());
            let data: Vec<f32> = serde_json::from_value(output["data"].clone()).unwrap();
            let same = data.iter().zip(&right.data).all(|(got, right)| (got - right).abs() < 1e-3);
            assert!(same && data.len() == right.data.len(), "expected {right:?}: {}", told());
        }
        Want::Error => assert!(answer.status >= 400 && !answer.error().is_empty(), "{}", told()),
        Want::Anything => {}
    }
}

/// Each kind of step as a model, by itself and summed up, and `chains` models of several.
fn models(chains: usize, random: &mut Random) -> Vec<(String, Vec<Step>)> {
    let mut models = Vec::new();
    for kind in 0..Step::KINDS {
        let step = Step::of_kind(kind, random);
        models.push((format!("single_{kind}"), vec![step.clone()]));
        models.push((format!("summed_{kind}"), vec![step, Step::SumRows]));
    }
    for number in 0..chains {
        let steps = loop {
            let count = 2 + random.below(3_u64);
            let steps: Vec<Step> = (0..count).map(|_| Step::of_kind(random.below(Step::KINDS), random)).collect();
            // OpenVINO does not check the length of the operand of a matrix product; Ledge does, for an input that
            // arrives there unchanged.
            let as_sent = |step: &Step| matches!(step, Step::Relu | Step::Shift(_) | Step::MatMul(_));
            let is_watched = steps.iter().rposition(|step| matches!(step, Step::MatMul(_))).unwrap_or(0);
            if !steps[..is_watched].iter().all(as_sent) {
                continue;
            }
            // A runtime may refuse a model that answers no call at all.
            if (0..200).any(|_| matches!(draw(&steps, random), (_, _, Want::Answer(_)))) {
                break steps;
            }
        };
        models.push((format!("chain_{number}"), steps));
    }
    models
}

/// Three clients at a time ask each model `calls` times.
fn every_answer_is_that_of_its_call(chains: usize, calls: usize) {
    let mut random = Random::new("right_answers");
    let models = models(chains, &mut random);
    let mut root = TestRoot::new();
    let mut served = Vec::new();
    for (name, steps) in &models {
        for (runtime, threads) in [("openvino", 1), ("openvino", 2), ("onnxruntime", 1), ("onnxruntime", 2)] {
            // Ledge refuses it for OpenVINO, which answers where the shape does not fit.
            let mut followed = steps.iter().filter(|step| !matches!(step, Step::Shift(_))).peekable();
            let mut is_refused = false;
            while let Some(step) = followed.next() {
                is_refused |= matches!((step, followed.peek()), (Step::Expand, Some(Step::Add)));
            }
            if runtime == "openvino" && is_refused {
                continue;
            }
            let model = format!("{name}_{runtime}_{threads}");
            let config =
                format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n[instance_group]\nthreads = {threads}\n");
            root =
                root.file(&format!("{model}/model.toml"), config).file(&format!("{model}/1/model.onnx"), file(steps));
            served.push((model, steps.clone()));
        }
    }
    let daemon = root.set("log.level=\"info\"").set("runtimes.threads=2").start();
    all_ready(&daemon, &served);

    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (mut random, served, daemon) = (random.fork(), &served, &daemon);
            scope.spawn(move || {
                let client = &mut daemon.client();
                for (model, steps) in served {
                    for _ in 0..calls {
                        ask(client, model, steps, &mut random);
                    }
                }
            });
        }
    });
}

fn all_ready(daemon: &TestDaemon, served: &[(String, Vec<Step>)]) {
    let index = daemon.client().post("/v2/repository/index", &[], b"").json();
    let mut refused = String::new();
    for row in index.as_array().unwrap().iter().filter(|row| row["state"] != "READY") {
        writeln!(refused, "{}: {}", row["name"], row["reason"]).unwrap();
    }
    assert!(refused.is_empty(), "{refused}");
    assert_eq!(index.as_array().unwrap().len(), served.len());
}

#[test]
fn an_answer_is_that_of_its_call_whatever_failed_before() {
    every_answer_is_that_of_its_call(3, 10);
}

#[test]
#[ignore = "minutes: make soak"]
fn an_answer_is_that_of_its_call_in_many_models() {
    every_answer_is_that_of_its_call(60, 40);
}

/// Calls that are put together: one that must fail is in a batch with others, which are answered right.
#[test]
fn a_batch_with_a_call_that_fails_answers_the_others_right() {
    let mut random = Random::new("right_answers_batched");
    let steps = vec![Step::Positions(numbers(&mut random, 4))];
    let mut root = TestRoot::new();
    for (runtime, threads) in [("openvino", 1), ("openvino", 2), ("onnxruntime", 1)] {
        let model = format!("batched_{runtime}_{threads}");
        let config = format!(
            "runtime = \"{runtime}\"\n[instance_group]\nthreads = {threads}\ncount = 1\n\
             [dynamic_batching]\nmax_queue_delay_us = 5000\npreferred_batch_sizes = [2, 4]\n"
        );
        root = root.file(&format!("{model}/model.toml"), config).file(&format!("{model}/1/model.onnx"), file(&steps));
    }
    let daemon = root.set("log.level=\"info\"").set("runtimes.threads=2").start();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let (mut random, steps, daemon) = (random.fork(), &steps, &daemon);
            scope.spawn(move || {
                let client = &mut daemon.client();
                for model in ["batched_openvino_1", "batched_openvino_2", "batched_onnxruntime_1"] {
                    for _ in 0..20 {
                        ask(client, model, steps, &mut random);
                    }
                }
            });
        }
    });
}
