//! The documents of a file: a stack of receipts that went through a scanner is one file.

use std::ops::Range;

use super::document::ReadPage;
use crate::pipeline::ocr::fields::{DocumentFieldDeclaration, DocumentFieldPattern, DocumentText, ParsedFieldValue};

/// The least confidence of a value that tells documents apart. A wrong one would have to look like another document
/// twice.
const LIKELY: f32 = 0.7;

/// What pages of a document say.
#[derive(Debug, Default)]
struct DocumentIdentity {
    total: Option<ParsedFieldValue>,
    has_sure_total: bool,
    number: Option<ParsedFieldValue>,
    date: Option<ParsedFieldValue>,
    supplier: Option<ParsedFieldValue>,
}

impl DocumentIdentity {
    fn of(page: &ReadPage, fields: &[DocumentFieldDeclaration]) -> Self {
        let text = DocumentText::new([page.text()]);
        // Each with whether it is sure.
        let likely = |pattern: DocumentFieldPattern| {
            let field = fields.iter().find(|field| field.pattern == pattern)?;
            let found = text.find(field).filter(|found| found.confidence >= LIKELY)?;
            Some((found.value, found.confidence >= field.threshold))
        };
        let value = |pattern: DocumentFieldPattern| likely(pattern).map(|(value, _)| value);
        let (total, has_sure_total) = likely(DocumentFieldPattern::Total).unzip();
        Self {
            total,
            has_sure_total: has_sure_total == Some(true),
            // A different number is enough, so it must be sure.
            number: likely(DocumentFieldPattern::DocumentNumber)
                .filter(|(_, is_sure)| *is_sure)
                .map(|(value, _)| value),
            date: value(DocumentFieldPattern::DocumentDate),
            supplier: value(DocumentFieldPattern::Supplier),
        }
    }

    /// True if a page is of another document. Both have a total, and differ in their number; if one has no number, in
    /// their total, and in their date, or in their supplier if the page has a date and its total is sure: terms of
    /// business and the details of a bill name amounts and companies, too.
    fn is_other(&self, page: &Self) -> bool {
        let same = |one: &Option<ParsedFieldValue>, other: &Option<ParsedFieldValue>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one.agrees(other))
        };
        let Some(same_total) = same(&self.total, &page.total) else { return false };
        let differs = |same: Option<bool>| same == Some(false);
        let has_another_origin = || {
            let has_own_sum = page.date.is_some() && page.has_sure_total;
            differs(same(&self.date, &page.date)) || has_own_sum && differs(same(&self.supplier, &page.supplier))
        };
        same(&self.number, &page.number).map_or_else(|| !same_total && has_another_origin(), |same| !same)
    }

    /// Takes what only a further page says.
    fn add(&mut self, page: Self) {
        let Self { total, number, date, supplier, has_sure_total: _ } = page;
        let known = [
            (&mut self.total, total),
            (&mut self.number, number),
            (&mut self.date, date),
            (&mut self.supplier, supplier),
        ];
        for (known, more) in known {
            if known.is_none() {
                *known = more;
            }
        }
    }
}

/// The pages of each document, as positions: one range if no page begins another document.
pub(super) fn documents(pages: &[ReadPage], fields: &[DocumentFieldDeclaration]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut identity = DocumentIdentity::default();
    for (index, page) in pages.iter().enumerate().filter(|_| pages.len() > 1) {
        let own = DocumentIdentity::of(page, fields);
        if identity.is_other(&own) {
            let start = found.last().map_or(0, |last| last.end);
            found.push(start..index);
            identity = own;
        } else {
            identity.add(own);
        }
    }
    let start = found.last().map_or(0, |last| last.end);
    found.push(start..pages.len());
    found
}
