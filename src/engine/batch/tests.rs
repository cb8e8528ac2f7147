use proptest::prelude::*;

use super::*;

fn floats(rows: usize, width: usize, seed: f32) -> Tensor {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let data = (0..rows * width).map(|index| seed * 1000.0 + index as f32).collect();
    Tensor::from_vec::<f32>(vec![rows, width], data).unwrap()
}

fn strings(rows: usize, seed: usize) -> Tensor {
    let texts: Vec<String> = (0..rows).map(|row| "x".repeat((seed + row) % 5)).collect();
    Tensor::from_strings(vec![rows, 1], texts.iter().map(String::as_bytes)).unwrap()
}

proptest! {
    /// With a model that returns its inputs unchanged, every request gets back exactly its own inputs.
    #[test]
    fn what_was_put_together_comes_apart_again(
        requests in proptest::collection::vec(0_usize..6, 2..12),
        width in 1_usize..5,
    ) {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let sent: Vec<Vec<Tensor>> = requests.iter().enumerate()
            .map(|(seed, &rows)| vec![floats(rows, width, seed as f32), strings(rows, seed)])
            .collect();
        let parts: Vec<&[Tensor]> = sent.iter().map(Vec::as_slice).collect();
        let together = concat(&parts).unwrap();
        let total: usize = requests.iter().sum();
        prop_assert_eq!(together[0].shape(), [total, width]);
        if let Ok(answers) = split(&together, &requests) {
            prop_assert_eq!(answers, sent);
        } else {
            prop_assert_eq!(total, 0);
        }
    }
}

#[test]
fn only_requests_that_differ_in_the_batch_alone_go_together() {
    let (a, b) = (floats(1, 3, 0.0), floats(4, 3, 1.0));
    let together = |x: &Tensor, y: &Tensor, out: &[usize], other: &[usize]| {
        batch_together(std::slice::from_ref(x), out, std::slice::from_ref(y), other)
    };
    assert!(together(&a, &b, &[0], &[0]));
    assert!(!together(&a, &b, &[0], &[0, 1]));
    assert!(!together(&a, &b, &[0, 1], &[1, 0]));
    assert!(!together(&a, &floats(1, 4, 0.0), &[0], &[0]));
    assert!(!together(&a, &strings(1, 0), &[0], &[0]));
    let integers = Tensor::from_vec::<i32>(vec![1, 3], vec![1, 2, 3]).unwrap();
    assert!(!together(&a, &integers, &[0], &[0]));
    let flat = Tensor::from_vec::<f32>(vec![3], vec![1.0; 3]).unwrap();
    assert!(!together(&a, &flat, &[0], &[0]));
    assert!(!batch_together(std::slice::from_ref(&a), &[0], &[a.clone(), b], &[0]));
}

#[test]
fn an_output_that_is_not_one_row_an_element_is_nobodys_answer() {
    let mean = floats(1, 3, 0.0);
    let error = split(std::slice::from_ref(&mean), &[1, 1]).unwrap_err();
    assert_eq!((error.output, error.shape.as_slice(), error.expected), (0, &[1, 3][..], 2));
    let scalar = Tensor::from_vec::<f32>(vec![], vec![1.0]).unwrap();
    assert!(split(&[scalar], &[1, 1]).is_err());
    assert_eq!(concat(&[]), None);
}
