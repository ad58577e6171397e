"""Label wordings, names, goods and formats of invoices in English, German, French and Dutch.

The lists are written by hand for this project; people, places and companies are made up from them.
"""

from simfl.data.benchmarks.provider_invoices.language import Language, parse_labels, parse_list

ENGLISH = Language(
    code="en",
    labels=parse_labels("""
        title: Invoice; INVOICE; Tax Invoice / Bill; Sales Invoice; STATEMENT
        number: Invoice No; Invoice Number; Invoice # / Bill No; Document No; Inv. Ref
        date: Date; Invoice Date; Issued / Billing Date; Date of Issue; Dated
        due: Due Date; Payment Due; Pay by / Due; Please pay before; Deadline
        customer: Bill to; Customer; Sold to / Billed to; Client; For
        item: Description; Item; Article / Product; Goods; Details
        quantity: Qty; Quantity; Units / Count; Pcs; No.
        price: Unit Price; Price; Rate / Each; Price per unit; Cost
        amount: Amount; Total; Line Total / Sum; Value; Extended
        net: Subtotal; Net Amount; Net / Sum of items; Goods total; Before tax
        tax: VAT; Sales Tax; Tax / Tax amount; Duty; GST
        total: Total; Total Due; Amount Due; Balance Due / Grand Total; To pay; Sum due
        thanks: Thank you for your order; Payable without deduction / Many thanks; Goods remain ours until paid
        phone: Phone; Tel / Call; T
        tax_id: VAT Reg No; Tax ID / Company No; Reg
    """),
    months=parse_list(
        "January, February, March, April, May, June, July, August, September, October, November, December"
    ),
    date_formats=("d/m/y4", "m/d/y4", "month d, y4", "d month y4", "mon d, y4", "d-mon-y2", "y4-m-d", "d/m/y2"),
    separators=(",.", ",.", "."),
    currencies=("USD $", "GBP £", "EUR €", "AUD $"),
    tax_rates=(200, 200, 50, 100, 85, 0),
    first_names=parse_list("""
        Alice, Brian, Carol, Daniel, Emma, Frank, Grace, Harry, Irene, Jack, Kate, Liam, Mary, Noah, Olive, Peter,
        Rose, Simon, Tara, Victor, Wendy, Adam, Beth, Colin
    """),
    surnames=parse_list("""
        Hartwell, Ashdown, Brookfield, Barlow, Carver, Clifton, Dunmore, Dalby, Eastwood, Elmsley, Fairfax, Fenwick,
        Garland, Gilmore, Hadley, Holbrook, Ingram, Irving, Jessop, Kendrick, Kirby, Langford, Larkin, Marlow,
        Merton, Norwood, Newell, Oakes, Ormond, Paxton, Penrose, Quincey, Radcliffe, Ramsey, Selby, Shelton,
        Thornton, Tilbury, Underhill, Upton, Varley, Vickers, Waverly, Whitlock, Yardley, Yates, Winslow, Wexford,
        Sterling, Stanhope, Mercer, Milburn
    """),
    trades=parse_list("""
        Supplies, Trading, Tools, Foods, Stationers, Hardware, Textiles, Electric, Motors, Gardens, Furniture,
        Packaging, Plumbing, Kitchens, Sports, Toys, Books, Optics, Bakery, Timber
    """),
    legal_forms=("Ltd", "Inc.", "LLC", "& Sons", "& Co"),
    streets=parse_list("""
        {} High Street, {} Mill Lane, {} Station Road, {} Church Street, {} Park Avenue, {} Queens Road,
        {} Market Square, {} Bridge Street, {} Orchard Way, {} Victoria Road, {} Harbour View, {} Elm Drive,
        {} King Street, {} Spring Gardens, {} Canal Walk, {} Meadow Close
    """),
    cities=parse_list("""
        Ashford, Milton, Redhill, Brighton, Newport, Kingston, Clayton, Dover, Lincoln, Weston, Burton, Preston,
        Salem, Oxford, Marion, Bristol, Fairview, Granby, Hartford, Somerton
    """),
    nouns=parse_list("""
        Apples, Aprons, Bags, Baskets, Batteries, Blankets, Bottles, Bowls, Boxes, Brushes, Buckets, Bulbs, Buttons,
        Cables, Candles, Carpets, Chairs, Cheese, Clocks, Coffee, Cups, Curtains, Cushions, Desks, Drills,
        Envelopes, Files, Flour, Folders, Forks, Glasses, Gloves, Hammers, Hats, Helmets, Honey, Hooks, Keyboards,
        Knives, Ladders, Lamps, Lemons, Locks, Markers, Mirrors, Nails, Napkins, Notebooks, Olives, Onions, Paint,
        Paper, Pears, Pencils, Pillows, Plates, Pots, Pumps, Ropes, Rulers, Salt, Saws, Scissors, Screws, Shelves,
        Shirts, Shovels, Soap, Spoons, Stools, Sugar, Tables, Tape, Tea, Tents, Tiles, Towels, Trays, Valves, Wheels
    """),
)


GERMAN = Language(
    code="de",
    labels=parse_labels("""
        title: Rechnung; RECHNUNG; Warenrechnung / Faktura; Abrechnung; Beleg
        number: Rechnungsnummer; Rechnungs-Nr.; Rechnung Nr. / Belegnummer; Faktura-Nr.; Vorgang
        date: Datum; Rechnungsdatum; Ausgestellt am / Belegdatum; Vom; Erstellt
        due: Zahlbar bis; Fällig am; Zahlungsziel / Fälligkeit; Zu zahlen bis; Frist
        customer: Kunde; Rechnung an; Empfänger / Käufer; Auftraggeber; An
        item: Bezeichnung; Artikel; Beschreibung / Ware; Leistung; Produkt
        quantity: Menge; Anzahl / Stück; Stk.
        price: Einzelpreis; Preis; E-Preis / Stückpreis; je Einheit
        amount: Betrag; Gesamt; G-Preis / Summe; Wert
        net: Nettobetrag; Zwischensumme; Summe netto / Warenwert; Netto
        tax: MwSt.; USt.; Umsatzsteuer / Steuer; Steuerbetrag
        total: Gesamtbetrag; Rechnungsbetrag; Zu zahlen / Endbetrag; Bruttosumme; Endsumme
        thanks: Vielen Dank für Ihren Auftrag; Zahlbar ohne Abzug / Wir danken Ihnen; Ware bleibt unser Eigentum
        phone: Telefon; Tel. / Ruf; Fon
        tax_id: USt-IdNr.; Steuernummer / St.-Nr.; HRB
    """),
    months=parse_list("Januar, Februar, März, April, Mai, Juni, Juli, August, September, Oktober, November, Dezember"),
    date_formats=("d.m.y4", "d.m.y4", "d. month y4", "d.m.y2", "y4-m-d", "d. mon y4"),
    separators=(".,", ".,", "'.", ","),
    currencies=("EUR €", "EUR €", "CHF CHF"),
    tax_rates=(190, 190, 70, 77, 0),
    first_names=parse_list("""
        Anna, Bernd, Clara, Dieter, Elke, Fritz, Greta, Hans, Ilse, Jonas, Karin, Lukas, Monika, Norbert, Olga,
        Paul, Ruth, Stefan, Tanja, Uwe, Vera, Walter, Heike, Jürgen
    """),
    surnames=parse_list("""
        Ackermann, Adler, Baumgart, Brandt, Clausen, Decker, Dörfler, Ebert, Eichhorn, Falk, Feldmann, Gerlach,
        Grothe, Haller, Hoffmeier, Imhof, Jansen, Jordan, Keller, Kirchner, Lindner, Lorenz, Mertens, Möller,
        Neubauer, Nolte, Oswald, Otten, Pfeifer, Probst, Quandt, Reimers, Rössler, Sander, Steinbach, Thiele,
        Tillmann, Ulrich, Unger, Vogt, Voss, Weidner, Winter, Zander, Ziegler, Zimmer, Kolb, Krüger
    """),
    trades=parse_list("""
        Werkzeuge, Handel, Büromarkt, Feinkost, Möbel, Elektro, Gartenbau, Textil, Haustechnik, Verpackung, Sport,
        Spielwaren, Buchhandel, Optik, Backwaren, Holzbau, Farben, Küchen, Getränke, Fahrzeuge
    """),
    legal_forms=("GmbH", "AG", "KG", "e.K.", "OHG"),
    streets=parse_list("""
        Hauptstraße {}, Bahnhofstraße {}, Gartenweg {}, Schulstraße {}, Lindenallee {}, Mühlenweg {}, Marktplatz {},
        Bergstraße {}, Kirchgasse {}, Wiesenweg {}, Ringstraße {}, Hafenstraße {}, Birkenweg {}, Am Anger {}
    """),
    cities=parse_list("""
        Neustadt, Altdorf, Bergheim, Lindau, Rosenheim, Steinfurt, Waldkirch, Kirchberg, Hagen, Fulda, Celle,
        Marburg, Erlangen, Weimar, Detmold, Husum, Passau, Landshut
    """),
    nouns=parse_list("""
        Äpfel, Batterien, Becher, Besen, Bleistifte, Blumentöpfe, Bohrer, Bretter, Briefumschläge, Butter, Decken,
        Dosen, Dübel, Eimer, Fahnen, Farbe, Feilen, Fliesen, Flaschen, Gabeln, Gläser, Glühbirnen, Haken, Hammer,
        Handschuhe, Handtücher, Hefte, Helme, Hemden, Honig, Hosen, Kabel, Kaffee, Kannen, Kartons, Käse, Kerzen,
        Kissen, Klammern, Kleber, Knöpfe, Koffer, Körbe, Kugelschreiber, Lampen, Leitern, Leuchten, Löffel, Mehl,
        Messer, Mützen, Nägel, Ordner, Papier, Pfannen, Pinsel, Pumpen, Regale, Reifen, Sägen, Salz, Schalter,
        Schaufeln, Scheren, Schrauben, Seife, Seile, Spiegel, Stifte, Stühle, Tassen, Teller, Teppiche, Tische,
        Töpfe, Uhren, Vasen, Ventile, Zangen, Zucker
    """),
)


FRENCH = Language(
    code="fr",
    labels=parse_labels("""
        title: Facture; FACTURE; Facture de vente / Note; Relevé; Décompte
        number: Facture n°; Numéro de facture; N° facture / Pièce n°; Référence; Réf.
        date: Date; Date de facture; Émise le / Établie le; Du; Le
        due: Échéance; Date limite; À payer avant le / Payable le; Règlement au; Exigible le
        customer: Client; Facturé à; Destinataire / Acheteur; Adressée à; Pour
        item: Désignation; Article; Description / Produit; Libellé
        quantity: Qté; Quantité / Nb; Nombre
        price: Prix unitaire; P.U. HT; Prix / Tarif; PU
        amount: Montant; Total HT / Valeur; Somme
        net: Total HT; Sous-total; Montant HT / Somme HT; Base
        tax: TVA; Montant TVA / Taxe; Taxes
        total: Total TTC; Net à payer; Montant dû / À régler; Somme due; Total général
        thanks: Merci de votre confiance; Pas d'escompte / Merci et à bientôt; Nous vous remercions
        phone: Tél.; Téléphone / Appel; Tel
        tax_id: N° TVA; SIRET / RCS; Siren
    """),
    months=parse_list(
        "janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre"
    ),
    date_formats=("d/m/y4", "d month y4", "d/m/y2", "d-m-y4", "d.m.y4", "y4-m-d"),
    separators=(",", ".,", ","),
    currencies=("EUR €", "EUR €", "CHF CHF"),
    tax_rates=(200, 200, 55, 100, 0),
    first_names=parse_list("""
        Alain, Brigitte, Camille, Denis, Élise, François, Gilles, Hélène, Isabelle, Julien, Karine, Laurent, Marie,
        Nicolas, Odile, Pascal, Renée, Sophie, Thierry, Valérie, Yves, Zoé, Benoît, Claire
    """),
    surnames=parse_list("""
        Aubry, Bellanger, Berger, Besson, Blanchet, Bouvier, Carpentier, Chauvin, Colin, Cordier, Delmas, Descamps,
        Dumont, Fabre, Ferrand, Fontaine, Gaillard, Garnier, Guichard, Hamel, Humbert, Jacquet, Joly, Lacroix,
        Lambert, Leclerc, Lemoine, Mallet, Marchand, Meunier, Morel, Navarro, Noël, Olivier, Paquet, Perrin, Picard,
        Poirier, Renard, Rivière, Roussel, Sabatier, Tessier, Thibault, Vasseur, Vidal, Weber, Verdier
    """),
    trades=parse_list("""
        Fournitures, Négoce, Outillage, Épicerie, Papeterie, Quincaillerie, Textiles, Électricité, Jardins,
        Mobilier, Emballages, Plomberie, Cuisines, Sports, Jouets, Librairie, Optique, Boulangerie, Menuiserie,
        Boissons
    """),
    legal_forms=("SARL", "SA", "SAS", "EURL", "et Fils"),
    streets=parse_list("""
        {} rue de la Gare, {} rue du Moulin, {} avenue de la République, {} place du Marché, {} rue des Lilas,
        {} boulevard Voltaire, {} rue de l'Église, {} chemin des Vignes, {} quai du Port, {} rue Pasteur,
        {} allée des Tilleuls, {} rue Victor Hugo, {} impasse du Lac, {} rue Neuve
    """),
    cities=parse_list("""
        Angers, Beaune, Castres, Dreux, Évreux, Foix, Gap, Laval, Mâcon, Niort, Orange, Pau, Rodez, Saumur, Tulle,
        Vannes, Vichy, Albi
    """),
    nouns=parse_list("""
        Agrafes, Ampoules, Assiettes, Balais, Bancs, Beurre, Boîtes, Bols, Bougies, Bouteilles, Boutons, Brosses,
        Cadres, Café, Cahiers, Câbles, Carreaux, Cartons, Casques, Casseroles, Chaises, Chapeaux, Chemises, Ciseaux,
        Citrons, Clés, Clous, Colle, Cordes, Couteaux, Couvertures, Crayons, Crochets, Cuillères, Draps, Échelles,
        Enveloppes, Étagères, Farine, Fenêtres, Feutres, Fils, Fourchettes, Fromage, Gants, Gommes, Horloges, Huile,
        Lampes, Limes, Lunettes, Manteaux, Marteaux, Miel, Miroirs, Nappes, Oignons, Oreillers, Outils, Paniers,
        Papier, Peinture, Pelles, Pinceaux, Piles, Plateaux, Poêles, Poires, Pommes, Pompes, Règles, Rideaux, Roues,
        Rubans, Sacs, Savon, Scies, Seaux, Sel, Serrures, Serviettes, Sucre, Tables, Tapis, Tasses, Tentes, Thé,
        Tuyaux, Vannes, Vases, Verres, Vis
    """),
)


DUTCH = Language(
    code="nl",
    labels=parse_labels("""
        title: Factuur; FACTUUR; Verkoopfactuur / Nota; Rekening; Afrekening
        number: Factuurnummer; Factuurnr.; Factuur nr. / Notanummer; Kenmerk; Stuknummer
        date: Datum; Factuurdatum / Opgemaakt; Notadatum; D.d.
        due: Vervaldatum; Betalen voor; Uiterste datum / Vervalt op; Te voldoen voor; Termijn
        customer: Klant; Factuur aan; Geadresseerde / Koper; Afnemer; Aan
        item: Omschrijving; Artikel; Product / Goederen; Levering
        quantity: Aantal; Aant. / Stuks; St.
        price: Prijs; Stukprijs; Eenheidsprijs / Per stuk; Tarief
        amount: Bedrag; Totaal / Som; Waarde
        net: Subtotaal; Totaal excl.; Netto / Goederenwaarde; Voor btw
        tax: BTW; Btw-bedrag / Belasting; Omzetbelasting
        total: Totaal; Te betalen; Totaalbedrag / Eindbedrag; Te voldoen; Samen
        thanks: Bedankt voor uw bestelling; Betaling zonder korting / Wij danken u; Graag tot ziens
        phone: Telefoon; Tel. / Bel; T.
        tax_id: BTW-nr.; KvK-nummer / KvK; Reg.nr.
    """),
    months=parse_list(
        "januari, februari, maart, april, mei, juni, juli, augustus, september, oktober, november, december"
    ),
    date_formats=("d-m-y4", "d-m-y4", "d month y4", "d-m-y2", "d/m/y4", "y4-m-d"),
    separators=(".,", ".,", ","),
    currencies=("EUR €", "EUR €", "EUR €"),
    tax_rates=(210, 210, 90, 0),
    first_names=parse_list("""
        Anouk, Bart, Carla, Dirk, Els, Frans, Gerda, Henk, Ineke, Jeroen, Kees, Lotte, Marieke, Niels, Olaf, Pieter,
        Roos, Sanne, Tom, Ursula, Vincent, Willem, Joost, Femke
    """),
    surnames=parse_list("""
        Aalders, Bakker, Beekman, Boersma, Brouwer, Claassen, Dekker, Dijkstra, Driessen, Engels, Evers, Faber,
        Geerts, Goossens, Haan, Hendriks, Hoekstra, Jacobs, Kamphuis, Koster, Kuipers, Lammers, Leeuw, Maas, Meijer,
        Mulder, Nauta, Nijland, Oosten, Peeters, Postma, Prins, Reinders, Roelofs, Sanders, Schouten, Smeets,
        Timmer, Verhoeven, Vermeer, Visser, Vos, Wagenaar, Wessels, Wouters, Ybema, Zijlstra, Zwart
    """),
    trades=parse_list("""
        Gereedschap, Handel, Kantoor, Levensmiddelen, Meubelen, Elektra, Tuincentrum, Textiel, Techniek, Verpakking,
        Sport, Speelgoed, Boeken, Optiek, Bakkerij, Houthandel, Verf, Keukens, Dranken, Rijwielen
    """),
    legal_forms=("B.V.", "N.V.", "V.O.F.", "& Zn."),
    streets=parse_list("""
        Dorpsstraat {}, Kerkweg {}, Stationsplein {}, Molenlaan {}, Havenkade {}, Lindelaan {}, Marktstraat {},
        Schoolstraat {}, Nieuwstraat {}, Parkweg {}, Beukenhof {}, Singel {}, Dijkweg {}, Veerstraat {}
    """),
    cities=parse_list("""
        Alkmaar, Breda, Delft, Ede, Goes, Hoorn, Kampen, Lelystad, Meppel, Nijkerk, Oss, Putten, Roermond, Sneek,
        Tiel, Veere, Weert, Zeist
    """),
    nouns=parse_list("""
        Aardappels, Appels, Asbakken, Batterijen, Bekers, Bezems, Bloempotten, Boeken, Boter, Borden, Borstels,
        Boren, Dekens, Dozen, Draad, Emmers, Enveloppen, Flessen, Gieters, Glazen, Gordijnen, Haken, Hamers,
        Handdoeken, Handschoenen, Helmen, Hemden, Honing, Hoeden, Jassen, Kaarsen, Kaas, Kabels, Kannen, Kapstokken,
        Kasten, Klokken, Knopen, Koffers, Koffie, Kranen, Krukken, Kussens, Ladders, Lampen, Latten, Lepels, Lijm,
        Linialen, Mappen, Meel, Messen, Mutsen, Naalden, Nietjes, Olie, Pannen, Papier, Pennen, Peren, Planken,
        Pleisters, Potloden, Pompen, Schalen, Scharen, Schoppen, Schroeven, Slangen, Sloten, Spiegels, Spijkers,
        Stiften, Stoelen, Suiker, Tafels, Tassen, Tapijten, Tegels, Tenten, Thee, Touw, Uien, Vazen, Verf, Vijlen,
        Vorken, Wielen, Zagen, Zakken, Zeep, Zout
    """),
)


LANGUAGES = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "nl": DUTCH}
