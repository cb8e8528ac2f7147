//! Turns a page upright, by the model that finds which of four orientations it has.

use serde::{Deserialize, Serialize};

use crate::pipeline::image::Rgb8Image;
use crate::pipeline::preparation::{ChannelOrder, ImagePreparation, PictureFit, TensorLayout};

use super::geometry::{Point, Quadrilateral};

/// Quarter turns, clockwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum QuarterTurns {
    #[default]
    #[serde(rename = "0")]
    None,
    #[serde(rename = "90")]
    Quarter,
    #[serde(rename = "180")]
    Half,
    #[serde(rename = "270")]
    ThreeQuarters,
}

impl QuarterTurns {
    const ALL: [Self; 4] = [Self::None, Self::Quarter, Self::Half, Self::ThreeQuarters];

    /// The rotation that undoes this one.
    #[must_use]
    pub fn back(self) -> Self {
        match self {
            Self::Quarter => Self::ThreeQuarters,
            Self::ThreeQuarters => Self::Quarter,
            same => same,
        }
    }

    pub fn degrees(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Quarter => 90,
            Self::Half => 180,
            Self::ThreeQuarters => 270,
        }
    }

    /// Turns a picture clockwise.
    pub fn apply(self, picture: Rgb8Image) -> Rgb8Image {
        if self == Self::None {
            return picture;
        }
        let (width, height) = (picture.width(), picture.height());
        let (new_width, new_height) = self.turned_size((width, height));
        let source = picture.pixels().as_chunks::<3>().0;
        let mut pixels = Vec::with_capacity(source.len());
        for y in 0..new_height {
            for x in 0..new_width {
                let (column, row) = match self {
                    Self::None => (x, y),
                    Self::Quarter => (y, height - 1 - x),
                    Self::Half => (width - 1 - x, height - 1 - y),
                    Self::ThreeQuarters => (width - 1 - y, x),
                };
                pixels.push(source.get(row as usize * width as usize + column as usize).copied().unwrap_or_default());
            }
        }
        Rgb8Image::new(new_width, new_height, pixels.into_flattened()).unwrap_or(picture)
    }

    /// Width and height of a picture after the rotation.
    pub fn turned_size<T>(self, (width, height): (T, T)) -> (T, T) {
        if matches!(self, Self::Quarter | Self::ThreeQuarters) { (height, width) } else { (width, height) }
    }

    /// The place on the page that came in, of this width and height, for a text on the turned page.
    pub fn on_page(self, area: Quadrilateral, (width, height): (f32, f32)) -> Quadrilateral {
        Quadrilateral(area.0.map(|Point { x, y }| match self {
            Self::None => Point::new(x, y),
            Self::Quarter => Point::new(y, height - x),
            Self::Half => Point::new(width - x, height - y),
            Self::ThreeQuarters => Point::new(width - y, x),
        }))
    }
}

/// The steps from a page to the tensor `[1, 3, 224, 224]` of the model of directions.
pub const PREPARATION: ImagePreparation = ImagePreparation {
    fit: PictureFit::Crop { shorter_side: 256 },
    size: [224, 224],
    mean: [123.675, 116.28, 103.53],
    std: [58.395, 57.12, 57.375],
    layout: TensorLayout::Nchw,
    color: ChannelOrder::Rgb,
};

/// The direction in which a page stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageDirection {
    /// The rotation that puts it upright.
    pub turn: QuarterTurns,
    pub score: f32,
}

/// The direction by the model's output `[1, 4]`, the scores of pages that were turned clockwise by 0, 90, 180 and 270
/// degrees. Below `score_min` a page is left as it is. `None` for another shape.
pub fn direction(shape: &[usize], scores: &[f32], score_min: f32) -> Option<PageDirection> {
    let ([1, 4], 4) = (shape, scores.len()) else { return None };
    let ranked = QuarterTurns::ALL.into_iter().zip(scores.iter().copied()).filter(|(_, score)| !score.is_nan());
    let (stands, score) = ranked.reduce(|best, next| if next.1 > best.1 { next } else { best })?;
    let turn = if score >= score_min { stands.back() } else { QuarterTurns::None };
    Some(PageDirection { turn, score })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::PageArea;
    use super::*;

    fn picture(width: u8, height: u8) -> Rgb8Image {
        let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x, y, 1]));
        Rgb8Image::new(width.into(), height.into(), pixels.collect()).unwrap()
    }

    #[test]
    fn a_quarter_turn_moves_the_lower_left_corner_to_the_upper_left() {
        let turned = QuarterTurns::Quarter.apply(picture(3, 2));
        assert_eq!((turned.width(), turned.height()), (2, 3));
        assert_eq!(turned.pixels(), [[0, 1, 1], [0, 0, 1], [1, 1, 1], [1, 0, 1], [2, 1, 1], [2, 0, 1]].as_flattened());
    }

    #[test]
    fn a_page_is_turned_back_where_the_model_is_sure() {
        let found = |scores: [f32; 4]| direction(&[1, 4], &scores, 0.5).map(|found| found.turn);
        assert_eq!(found([0.1, 0.8, 0.05, 0.05]), Some(QuarterTurns::ThreeQuarters));
        assert_eq!(found([0.1, 0.1, 0.7, 0.1]), Some(QuarterTurns::Half));
        assert_eq!(found([0.3, 0.4, 0.2, 0.1]), Some(QuarterTurns::None));
        assert_eq!(found([f32::NAN, 0.2, 0.1, 0.9]), Some(QuarterTurns::Quarter));
        assert_eq!(found([f32::NAN; 4]), None);
        assert_eq!(direction(&[4], &[0.0; 4], 0.5), None);
    }

    proptest! {
        #[test]
        fn turning_back_gives_the_same_page_and_places(width in 1_u8..20, height in 1_u8..20, index in 0_usize..4) {
            let turn = QuarterTurns::ALL[index];
            let turned = turn.apply(picture(width, height));
            prop_assert_eq!((turned.width(), turned.height()), turn.turned_size((width.into(), height.into())));
            prop_assert_eq!(turn.back().apply(turned.clone()), picture(width, height));
            // The middle of each pixel of the turned page is that of the same pixel of the page.
            for (at, pixel) in turned.pixels().chunks(3).enumerate() {
                let (x, y) = (at % turned.width() as usize, at / turned.width() as usize);
                let place = |x: usize| f32::from(u8::try_from(x).unwrap());
                let around = PageArea { left: place(x), top: place(y), right: place(x + 1), bottom: place(y + 1) };
                let centre = turn.on_page(Quadrilateral::upright(around), (width.into(), height.into())).centre();
                prop_assert_eq!((centre.x, centre.y), (f32::from(pixel[0]) + 0.5, f32::from(pixel[1]) + 0.5));
            }
        }
    }
}
