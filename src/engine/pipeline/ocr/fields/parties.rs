//! Whose names, addresses and numbers stand on a page: those of the seller or those of the buyer, by the headings above.

use std::ops::Range;

use super::labels::folded;
use super::row_text::RowText;

/// A side of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Party {
    Seller,
    Buyer,
}

const SELLERS: &str = "seller soldby supplier vendor from merchant issuedby billedby billfrom invoicefrom shipfrom verkaufer lieferant \
    rechnungssteller rechnungsaussteller aussteller absender leistungserbringer vendeur fournisseur emetteur emispar prestataire \
    vendedor proveedor emisor fornitore cedente prestatore mittente cedenteprestatore verkoper leverancier sprzedawca wystawca \
    dodavatel predavajici saljare leverantor selger saelger leverandor myyja toimittaja elado szallito furnizor prodavatelj satici \
    fornecedor emitente penjual";
const BUYERS: &str = "to buyer customer client consignee recipient attn billto billedto soldto shipto shippedto deliverto invoiceto \
    invoicedto chargeto customername billingaddress shippingaddress deliveryaddress dearcustomer messrs kaufer kunde empfanger \
    leistungsempfanger rechnungsempfanger rechnungan rechnungsadresse rechnungsanschrift lieferadresse lieferanschrift acheteur \
    destinataire facturea facturera adressedefacturation adressedelivraison livrea comprador cliente destinatario facturara \
    facturadoa datosdelcliente cessionario committente cessionariocommittente spettle spettabile destinazione koper klant afnemer \
    factuuradres factuuraan afleveradres nabywca odbiorca odberatel prijemce kupujici kopare kund kober kjoper mottagare \
    fakturaadress fakturaadresse leveringsadresse asiakas ostaja vevo megrendelo cumparator kupac kupec alici sayin musteri \
    pembeli kepada";

/// The side that a text is the heading of.
pub(super) fn heading(chars: &[char]) -> Option<Party> {
    let texts = chars.split(|char| !char.is_alphabetic() && !matches!(char, ' ' | '.' | '\''));
    let texts: Vec<String> = texts.map(|text| text.iter().copied().flat_map(folded).collect()).collect();
    let has = |names: &str| names.split_whitespace().any(|name| texts.iter().any(|text| text == name));
    match (has(SELLERS), has(BUYERS)) {
        (true, false) => Some(Party::Seller),
        (false, true) => Some(Party::Buyer),
        _ => None,
    }
}

/// The side of each row, by the last heading in it or above.
pub(super) fn of_rows(rows: &[RowText<'_>]) -> Vec<Option<Party>> {
    let mut now = None;
    let sides = rows.iter().map(|row| {
        now = heading(row.chars()).or(now);
        now
    });
    sides.collect()
}

/// The rows above a line in which its heading is searched.
const ROWS_ABOVE: usize = 4;

/// The side of a line, by the nearest heading left of it or above it.
pub(super) fn of_line(rows: &[RowText<'_>], index: usize, line: &Range<usize>) -> Option<Party> {
    let row = rows.get(index)?;
    let before = row.chars().get(..line.end).and_then(heading);
    let area = row.place(line)?.0.bounds();
    let above = || {
        (index.saturating_sub(ROWS_ABOVE)..index).rev().filter_map(|above| rows.get(above)).find_map(|above| {
            let mut over = above
                .lines()
                .into_iter()
                .filter(|line| above.place(line).is_some_and(|(place, _)| place.bounds().overlap_across(&area) > 0.0));
            over.find_map(|line| heading(above.chars().get(line)?))
        })
    };
    before.or_else(above)
}
