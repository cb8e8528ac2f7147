//! Objects that were found in a photograph, as plain data that does not depend on the model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The score above its threshold with which an object must be found by another version of a model, too.
const SCORE_MARGIN: f32 = 0.1;

/// The least intersection over union of two boxes around one object.
const SAME_OBJECT_IOU: f64 = 0.5;

/// One object in a photograph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Detection {
    /// The name of its class; the number of the class if the model has no labels or its line is empty.
    pub label: String,
    /// Its score, 0 to 1.
    pub score: f32,
    /// Its place in the photograph as it is seen, turned by its EXIF orientation.
    #[serde(rename = "box")]
    pub area: DetectionBox,
    /// The difference between its score and the least score of its class.
    #[serde(skip)]
    pub margin: f32,
}

impl Detection {
    /// The member of an answer that holds detections.
    pub const MEMBER: &str = "detections";
}

/// A rectangle in pixels of the photograph, from its upper left corner; never outside of it and never empty. Numbers
/// are multiples of 1/8.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DetectionBox {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl DetectionBox {
    /// Intersection over union with another rectangle, 0 to 1.
    pub fn overlap(self, other: Self) -> f64 {
        overlap(self.edges(), other.edges())
    }

    /// Left, upper, right and lower edge.
    fn edges(self) -> [f64; 4] {
        [self.x, self.y, self.x + self.width, self.y + self.height]
    }
}

/// Intersection over union of two rectangles, 0 to 1, by their left, upper, right and lower edges; 0 where both are
/// empty.
pub(super) fn overlap(one: [f64; 4], other: [f64; 4]) -> f64 {
    let area = |[left, top, right, bottom]: [f64; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let both = area([one[0].max(other[0]), one[1].max(other[1]), one[2].min(other[2]), one[3].min(other[3])]);
    let union = area(one) + area(other) - both;
    if union > 0.0 { both / union } else { 0.0 }
}

/// Returns true if two versions of a model found the same objects: each that one of them found clearly, the other found
/// with the same label at the same place.
pub fn agree(one: &[Detection], other: &[Detection]) -> bool {
    has_all(one, other) && has_all(other, one)
}

/// True if `found` has a different detection for each clear one of `wanted`.
fn has_all(found: &[Detection], wanted: &[Detection]) -> bool {
    let mut left: Vec<_> = found.iter().collect();
    wanted.iter().filter(|wanted| wanted.margin >= SCORE_MARGIN).all(|wanted| {
        let same =
            |found: &&Detection| found.label == wanted.label && found.area.overlap(wanted.area) >= SAME_OBJECT_IOU;
        left.iter().position(same).map(|index| left.remove(index)).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detection(label: &str, x: f64, margin: f32) -> Detection {
        let area = DetectionBox { x, y: 0.0, width: 10.0, height: 10.0 };
        Detection { label: label.to_owned(), score: 0.4 + margin, area, margin }
    }

    #[test]
    fn versions_agree_on_clear_objects_and_may_differ_on_others() {
        let two = [detection("cat", 0.0, 0.3), detection("cat", 2.0, 0.2)];
        assert!(agree(&two, &[detection("cat", 1.0, 0.05), detection("cat", 3.0, 0.4)]));
        assert!(agree(&two, &[&two[..], &[detection("dog", 50.0, 0.05)]].concat()));
        assert!(!agree(&two, &two[..1]), "one box does not stand for two cats");
        assert!(!agree(&two[..1], &two));
        assert!(!agree(&two, &[detection("dog", 0.0, 0.3), detection("cat", 2.0, 0.2)]));
        assert!(!agree(&two[..1], &[detection("cat", 8.0, 0.3)]));
        assert!(agree(&[], &[detection("cat", 0.0, 0.09)]));
    }
}
