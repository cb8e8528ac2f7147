//! The values of one step, summarized in parts: only those that the declared functions need.

#![expect(clippy::cast_precision_loss, reason = "results are doubles, and no step has 2^53 values")]

use super::super::value::Value;
use super::super::wire::put_value;
use super::distinct::{DistinctValues, hash};
use crate::view::AggregateFunction;

/// The bits of the parts.
pub const PART_COUNT: u8 = 1;
pub const PART_SUM: u8 = 1 << 1;
pub const PART_MOMENTS: u8 = 1 << 2;
pub const PART_MIN: u8 = 1 << 3;
pub const PART_MAX: u8 = 1 << 4;
pub const PART_LAST: u8 = 1 << 5;
pub const PART_DISTINCT: u8 = 1 << 6;

/// One step of a track.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowBucket {
    /// The number of the step since the epoch; negative before it.
    pub number: i64,
    pub count: Option<u64>,
    /// For the sum and the mean.
    pub sum: Option<CompensatedSum>,
    pub moments: Option<RunningMoments>,
    /// The least value.
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub last: Option<NewestValue>,
    pub distinct: Option<DistinctValues>,
}

/// A sum that does not lose small numbers next to large ones.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CompensatedSum {
    pub count: u64,
    /// The sum of the integers, exact.
    pub integer: i128,
    /// The sum of the floats, without the rounding errors in `lost`.
    pub float: f64,
    /// The sum of the rounding errors of `float`.
    pub lost: f64,
}

/// Welford's running mean and sum of squared differences from it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RunningMoments {
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The sum of the squares of their differences from the mean.
    pub squares: f64,
}

/// The newest value of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestValue {
    /// The event time, in microseconds since the beginning of the step.
    pub offset_us: u64,
    pub value: Value,
}

/// A value that counts, and its number for computations.
#[derive(Debug, Clone, Copy)]
pub struct CountedValue<'v> {
    value: &'v Value,
    number: WindowNumber,
}

#[derive(Debug, Clone, Copy)]
enum WindowNumber {
    Integer(i64),
    Float(f64),
    None,
}

impl<'v> CountedValue<'v> {
    /// `None` for NaN, which is treated as null.
    pub fn new(value: &'v Value) -> Option<Self> {
        let number = match value {
            Value::Int32(number) => WindowNumber::Integer((*number).into()),
            Value::Int64(number) | Value::UnixTimestamp(number) => WindowNumber::Integer(*number),
            Value::Bool(flag) => WindowNumber::Integer((*flag).into()),
            Value::Float32(number) if number.is_nan() => return None,
            Value::Float64(number) if number.is_nan() => return None,
            Value::Float32(number) => WindowNumber::Float((*number).into()),
            Value::Float64(number) => WindowNumber::Float(*number),
            _ => WindowNumber::None,
        };
        Some(Self { value, number })
    }

    fn float(&self) -> Option<f64> {
        match self.number {
            WindowNumber::Integer(number) => Some(number as f64),
            WindowNumber::Float(number) => Some(number),
            WindowNumber::None => None,
        }
    }

    fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(16);
        // The two zeros are one number.
        match self.number {
            WindowNumber::Float(0.0) => put_value(&mut bytes, &Value::Float64(0.0)),
            _ => put_value(&mut bytes, self.value),
        }
        hash(&bytes)
    }
}

/// The parts that a function needs.
pub fn needs(function: AggregateFunction) -> u8 {
    match function {
        AggregateFunction::Count => PART_COUNT,
        AggregateFunction::Sum | AggregateFunction::Mean => PART_SUM,
        AggregateFunction::Min => PART_MIN,
        AggregateFunction::Max => PART_MAX,
        AggregateFunction::Last => PART_LAST,
        AggregateFunction::Std => PART_MOMENTS,
        AggregateFunction::CountDistinct => PART_DISTINCT,
    }
}

impl WindowBucket {
    /// Creates a bucket without a value.
    pub fn new(number: i64) -> Self {
        Self { number, count: None, sum: None, moments: None, min: None, max: None, last: None, distinct: None }
    }

    /// The parts that it has.
    pub fn parts(&self) -> u8 {
        let part = |has: bool, bit: u8| if has { bit } else { 0 };
        part(self.count.is_some(), PART_COUNT)
            | part(self.sum.is_some(), PART_SUM)
            | part(self.moments.is_some(), PART_MOMENTS)
            | part(self.min.is_some(), PART_MIN)
            | part(self.max.is_some(), PART_MAX)
            | part(self.last.is_some(), PART_LAST)
            | part(self.distinct.is_some(), PART_DISTINCT)
    }

    /// Drops all other parts. False when none is left.
    pub fn keep(&mut self, parts: u8) -> bool {
        if self.parts() & !parts != 0 {
            self.count = self.count.filter(|_| parts & PART_COUNT != 0);
            self.sum = self.sum.filter(|_| parts & PART_SUM != 0);
            self.moments = self.moments.filter(|_| parts & PART_MOMENTS != 0);
            self.min = self.min.filter(|_| parts & PART_MIN != 0);
            self.max = self.max.filter(|_| parts & PART_MAX != 0);
            self.last = self.last.take().filter(|_| parts & PART_LAST != 0);
            self.distinct = self.distinct.take().filter(|_| parts & PART_DISTINCT != 0);
        }
        self.parts() != 0
    }

    /// Adds a value to these parts.
    pub fn add(&mut self, parts: u8, offset_us: u64, sample: &CountedValue<'_>) {
        if parts & PART_COUNT != 0 {
            self.count = Some(self.count.unwrap_or(0).saturating_add(1));
        }
        if parts & PART_LAST != 0 && self.last.as_ref().is_none_or(|last| offset_us >= last.offset_us) {
            self.last = Some(NewestValue { offset_us, value: sample.value.clone() });
        }
        if parts & PART_DISTINCT != 0 {
            let hash = sample.hash();
            match &mut self.distinct {
                Some(distinct) => distinct.add(hash),
                None => self.distinct = Some(DistinctValues::of(hash)),
            }
        }
        let Some(float) = sample.float() else { return };
        if parts & PART_SUM != 0 {
            self.sum.get_or_insert_default().add(sample.number);
        }
        if parts & PART_MOMENTS != 0 {
            self.moments.get_or_insert_default().add(float);
        }
        if parts & PART_MIN != 0 {
            self.min = Some(self.min.map_or(float, |min| min.min(float)));
        }
        if parts & PART_MAX != 0 {
            self.max = Some(self.max.map_or(float, |max| max.max(float)));
        }
    }
}

impl CompensatedSum {
    fn add(&mut self, number: WindowNumber) {
        self.count = self.count.saturating_add(1);
        match number {
            WindowNumber::Integer(number) => self.integer = self.integer.saturating_add(number.into()),
            WindowNumber::Float(number) => self.add_float(number),
            WindowNumber::None => {}
        }
    }

    /// Neumaier's sum: keeps the part of the smaller number that rounding loses.
    fn add_float(&mut self, number: f64) {
        let sum = self.float + number;
        if sum.is_finite() {
            let (large, small) =
                if self.float.abs() >= number.abs() { (self.float, number) } else { (number, self.float) };
            self.lost += (large - sum) + small;
        }
        self.float = sum;
    }

    fn merge(mut self, other: &Self) -> Self {
        self.count = self.count.saturating_add(other.count);
        self.integer = self.integer.saturating_add(other.integer);
        self.add_float(other.float);
        self.lost += other.lost;
        self
    }

    fn value(&self) -> f64 {
        self.integer as f64 + (self.float + self.lost)
    }
}

impl RunningMoments {
    fn add(&mut self, number: f64) {
        self.count = self.count.saturating_add(1);
        let before = number - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (number - self.mean);
    }

    /// Chan's merge.
    fn merge(self, other: &Self) -> Self {
        if self.count == 0 {
            return *other;
        }
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let between = other.mean - self.mean;
        Self {
            count: self.count.saturating_add(other.count),
            mean: self.mean + between * (theirs / (ours + theirs)),
            squares: self.squares + other.squares + between * between * (ours * theirs / (ours + theirs)),
        }
    }

    fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).sqrt())
    }
}

/// A function over the buckets of a window. `None` is null.
pub fn result(function: AggregateFunction, buckets: &[WindowBucket]) -> Option<Value> {
    let integer = |number: u64| Some(Value::Int64(i64::try_from(number).unwrap_or(i64::MAX)));
    // The sum of infinities of both signs is NaN, for example.
    let float = |number: Option<f64>| number.filter(|number| !number.is_nan()).map(Value::Float64);
    let sum = || {
        buckets.iter().filter_map(|bucket| bucket.sum.as_ref()).fold(CompensatedSum::default(), CompensatedSum::merge)
    };
    match function {
        AggregateFunction::Count => {
            integer(buckets.iter().filter_map(|bucket| bucket.count).fold(0, u64::saturating_add))
        }
        AggregateFunction::Sum => {
            let sum = sum();
            float((sum.count > 0).then(|| sum.value()))
        }
        AggregateFunction::Mean => {
            let sum = sum();
            float((sum.count > 0).then(|| sum.value() / sum.count as f64))
        }
        AggregateFunction::Min => float(buckets.iter().filter_map(|bucket| bucket.min).reduce(f64::min)),
        AggregateFunction::Max => float(buckets.iter().filter_map(|bucket| bucket.max).reduce(f64::max)),
        AggregateFunction::Last => {
            buckets.iter().rev().find_map(|bucket| bucket.last.as_ref()).map(|last| last.value.clone())
        }
        AggregateFunction::Std => {
            let moments = buckets.iter().filter_map(|bucket| bucket.moments.as_ref());
            float(moments.fold(RunningMoments::default(), RunningMoments::merge).deviation())
        }
        AggregateFunction::CountDistinct => {
            integer(DistinctValues::count(buckets.iter().filter_map(|bucket| bucket.distinct.as_ref())))
        }
    }
}
