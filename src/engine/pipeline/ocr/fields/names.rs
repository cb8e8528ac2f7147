//! The words of names: of companies, and of what else stands at the top of a page.

use super::labels::folded;
use crate::pipeline::ocr::geometry::coordinate;

/// Words behind the names of companies.
pub(super) const LEGAL_FORMS: &str = "sdn bhd berhad enterprise enterprises trading pvt pte pty ltd limited llc llp lp inc incorporated corp \
    corporation co company plc gmbh mbh ag kg ohg ug gbr ek ev kgaa se sarl sas sasu sa sal eurl sci snc spa srl srls sapa bv nv \
    vof cv bvba ab hb oy oyj as asa aps ou uab sia sro spol doo dd ad kft zrt bt nyrt sp spzoo zoo oo lda ltda sl slu slne sll sc \
    fzc fzco fze wll sti as anonim tic san pt tbk cv jsc ooo";
/// Those that end a name.
pub(super) const FINAL_FORMS: &str =
    "bhd berhad ltd limited llc inc gmbh sarl srl spa bv plc oy oyj kft zrt doo lda ltda sti kgaa";
/// Words of shops, restaurants and trades.
pub(super) const TRADES: &str = "restaurant restaurante ristorante restaurace restoran cafe caffe coffee kopitiam bar pub grill kitchen bistro \
    brasserie pizza pizzeria trattoria osteria sushi bakery boulangerie panaderia backerei konditorei metzgerei market mart supermarket \
    supermarkt supermercado supermarche hypermarket hypermarkt minimarket markt store stores shop boutique hotel hostel inn resort \
    pharmacy pharmacie farmacia farmacie apotheke lekarna hardware stationery books bookstore gift foods food house kedai \
    gasthaus gasthof station petrol tankstelle electronics services service solutions systems group holdings industries studio salon \
    clinic fashion furniture motors auto garage";
/// Words of addresses.
pub(super) const ADDRESSES: &str = "street st road rd avenue ave blvd lane drive suite floor jalan jln lot lorong taman bandar selangor kuala lumpur \
    johor malaysia strasse str platz weg allee gasse rue quai calle carrera via viale piazza corso avenida rua straat laan plein ulica ul \
    ulice utca cadde cad sokak mah mahallesi sok highway hwy plaza block unit box ny ca tx usa postcode zip";
/// Words of what else stands at the top.
pub(super) const OTHERS: &str = "receipt invoice tax bill cash tel telephone phone fax mobile email mail www http https com welcome thank thanks \
    date time table server order customer copy duplicate original page rechnung facture fattura factura factuur fatura faktura beleg \
    quittung kassenbon bon ticket gst vat reg registration no nr number manager cashier open description qty item items price amount \
    total subtotal balance due dine take guest guests check statement paid posted duplikat seller buyer counter again please come \
    merchant datum kunde steuernummer delivery note quote proforma credit debit account sale sales transaction approved station \
    terminal";
/// Words of sentences, which names seldom have.
pub(super) const SENTENCES: &str = "you your our we us is are was were be been this that these it if not with for by on at see back give get \
    have has will can know known formerly here more all any only from until within after before please sie ihr ihre wir uns ist sind \
    mit bei auf bitte und oder nicht vous votre nous notre est sont pour avec dans";

/// The word in plain small letters, without signs.
pub(super) fn plain(word: &str) -> String {
    word.chars().flat_map(folded).collect()
}

/// True if a list has this plain word.
pub(super) fn is_in(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|other| other == word)
}

/// The letters of a name without those of its legal form, unless it has no others.
fn letters(name: &str) -> String {
    let words: Vec<String> = name.split_whitespace().map(plain).collect();
    let own: String = words.iter().filter(|word| !is_in(LEGAL_FORMS, word)).map(String::as_str).collect();
    if own.is_empty() { words.concat() } else { own }
}

/// The part of a name that is enough to be the same.
const MOST: f32 = 0.6;

/// True for two names of which one is most of the other.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (letters(one), letters(other));
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.contains(&short) && coordinate(short.len()) >= MOST * coordinate(long.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_with_and_without_their_legal_form() {
        for (one, other, expected) in [
            ("Corner Shop", "CORNER SHOP LTD", true),
            ("Ilio's Pizza", "ILIO'S Pizza Bar", true),
            ("Corner", "Corner Restaurant", false),
            ("Seller GmbH", "Buyer GmbH", false),
        ] {
            assert_eq!(is_same(one, other), expected, "{one} {other}");
        }
    }
}
