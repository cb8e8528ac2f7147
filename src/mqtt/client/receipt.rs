//! The end of a published message, for the part that published it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Reports once what became of a message. Clones are of the same message. When the last one is dropped unsettled, as
/// with a message that had to make room, the receiver gets an error.
#[derive(Debug, Clone)]
pub struct PublicationReceipt(Arc<Mutex<Option<ReceiptSender>>>);

type ReceiptSender = oneshot::Sender<Result<(), String>>;

impl PublicationReceipt {
    /// A receipt, and the place where its report arrives: `Ok` once the broker has acknowledged the message, else the
    /// reason why the broker does not take it.
    pub fn new() -> (Self, oneshot::Receiver<Result<(), String>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Reports the end. Only the first report counts.
    pub fn settle(&self, result: Result<(), String>) {
        // Nothing panics under this lock.
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The part may have stopped waiting.
        let _ = sender.map(|sender| sender.send(result));
    }
}

/// Two receipts are equal if they are of the same message.
impl PartialEq for PublicationReceipt {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PublicationReceipt {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_counts_and_a_dropped_message_is_noticed() {
        let (receipt, mut settled) = PublicationReceipt::new();
        let copy = receipt.clone();
        assert!(receipt == copy && settled.try_recv().is_err());
        copy.settle(Ok(()));
        receipt.settle(Err("late".to_owned()));
        assert_eq!(settled.try_recv(), Ok(Ok(())));

        let (receipt, mut dropped) = PublicationReceipt::new();
        drop(receipt);
        assert_eq!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
