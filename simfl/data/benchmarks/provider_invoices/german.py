"""German invoices."""

from simfl.data.benchmarks.provider_invoices.language import Language, label_table, phrases

GERMAN = Language(
    code="de",
    labels=label_table("""
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
    months=phrases("Januar, Februar, März, April, Mai, Juni, Juli, August, September, Oktober, November, Dezember"),
    date_formats=("d.m.y4", "d.m.y4", "d. month y4", "d.m.y2", "y4-m-d", "d. mon y4"),
    separators=(".,", ".,", "'.", ","),
    currencies=("EUR €", "EUR €", "CHF CHF"),
    tax_rates=(190, 190, 70, 77, 0),
    first_names=phrases("""
        Anna, Bernd, Clara, Dieter, Elke, Fritz, Greta, Hans, Ilse, Jonas, Karin, Lukas, Monika, Norbert, Olga,
        Paul, Ruth, Stefan, Tanja, Uwe, Vera, Walter, Heike, Jürgen
    """),
    surnames=phrases("""
        Ackermann, Adler, Baumgart, Brandt, Clausen, Decker, Dörfler, Ebert, Eichhorn, Falk, Feldmann, Gerlach,
        Grothe, Haller, Hoffmeier, Imhof, Jansen, Jordan, Keller, Kirchner, Lindner, Lorenz, Mertens, Möller,
        Neubauer, Nolte, Oswald, Otten, Pfeifer, Probst, Quandt, Reimers, Rössler, Sander, Steinbach, Thiele,
        Tillmann, Ulrich, Unger, Vogt, Voss, Weidner, Winter, Zander, Ziegler, Zimmer, Kolb, Krüger
    """),
    trades=phrases("""
        Werkzeuge, Handel, Büromarkt, Feinkost, Möbel, Elektro, Gartenbau, Textil, Haustechnik, Verpackung, Sport,
        Spielwaren, Buchhandel, Optik, Backwaren, Holzbau, Farben, Küchen, Getränke, Fahrzeuge
    """),
    legal_forms=("GmbH", "AG", "KG", "e.K.", "OHG"),
    streets=phrases("""
        Hauptstraße {}, Bahnhofstraße {}, Gartenweg {}, Schulstraße {}, Lindenallee {}, Mühlenweg {}, Marktplatz {},
        Bergstraße {}, Kirchgasse {}, Wiesenweg {}, Ringstraße {}, Hafenstraße {}, Birkenweg {}, Am Anger {}
    """),
    cities=phrases("""
        Neustadt, Altdorf, Bergheim, Lindau, Rosenheim, Steinfurt, Waldkirch, Kirchberg, Hagen, Fulda, Celle,
        Marburg, Erlangen, Weimar, Detmold, Husum, Passau, Landshut
    """),
    nouns=phrases("""
        Äpfel, Batterien, Becher, Besen, Bleistifte, Blumentöpfe, Bohrer, Bretter, Briefumschläge, Butter, Decken,
        Dosen, Dübel, Eimer, Fahnen, Farbe, Feilen, Fliesen, Flaschen, Gabeln, Gläser, Glühbirnen, Haken, Hammer,
        Handschuhe, Handtücher, Hefte, Helme, Hemden, Honig, Hosen, Kabel, Kaffee, Kannen, Kartons, Käse, Kerzen,
        Kissen, Klammern, Kleber, Knöpfe, Koffer, Körbe, Kugelschreiber, Lampen, Leitern, Leuchten, Löffel, Mehl,
        Messer, Mützen, Nägel, Ordner, Papier, Pfannen, Pinsel, Pumpen, Regale, Reifen, Sägen, Salz, Schalter,
        Schaufeln, Scheren, Schrauben, Seife, Seile, Spiegel, Stifte, Stühle, Tassen, Teller, Teppiche, Tische,
        Töpfe, Uhren, Vasen, Ventile, Zangen, Zucker
    """),
)
