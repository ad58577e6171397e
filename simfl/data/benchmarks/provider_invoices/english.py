"""English invoices."""

from simfl.data.benchmarks.provider_invoices.language import Language, label_table, phrases

ENGLISH = Language(
    code="en",
    labels=label_table("""
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
    months=phrases("January, February, March, April, May, June, July, August, September, October, November, December"),
    date_formats=("d/m/y4", "m/d/y4", "month d, y4", "d month y4", "mon d, y4", "d-mon-y2", "y4-m-d", "d/m/y2"),
    separators=(",.", ",.", "."),
    currencies=("USD $", "GBP £", "EUR €", "AUD $"),
    tax_rates=(200, 200, 50, 100, 85, 0),
    first_names=phrases("""
        Alice, Brian, Carol, Daniel, Emma, Frank, Grace, Harry, Irene, Jack, Kate, Liam, Mary, Noah, Olive, Peter,
        Rose, Simon, Tara, Victor, Wendy, Adam, Beth, Colin
    """),
    surnames=phrases("""
        Hartwell, Ashdown, Brookfield, Barlow, Carver, Clifton, Dunmore, Dalby, Eastwood, Elmsley, Fairfax, Fenwick,
        Garland, Gilmore, Hadley, Holbrook, Ingram, Irving, Jessop, Kendrick, Kirby, Langford, Larkin, Marlow,
        Merton, Norwood, Newell, Oakes, Ormond, Paxton, Penrose, Quincey, Radcliffe, Ramsey, Selby, Shelton,
        Thornton, Tilbury, Underhill, Upton, Varley, Vickers, Waverly, Whitlock, Yardley, Yates, Winslow, Wexford,
        Sterling, Stanhope, Mercer, Milburn
    """),
    trades=phrases("""
        Supplies, Trading, Tools, Foods, Stationers, Hardware, Textiles, Electric, Motors, Gardens, Furniture,
        Packaging, Plumbing, Kitchens, Sports, Toys, Books, Optics, Bakery, Timber
    """),
    legal_forms=("Ltd", "Inc.", "LLC", "& Sons", "& Co"),
    streets=phrases("""
        {} High Street, {} Mill Lane, {} Station Road, {} Church Street, {} Park Avenue, {} Queens Road,
        {} Market Square, {} Bridge Street, {} Orchard Way, {} Victoria Road, {} Harbour View, {} Elm Drive,
        {} King Street, {} Spring Gardens, {} Canal Walk, {} Meadow Close
    """),
    cities=phrases("""
        Ashford, Milton, Redhill, Brighton, Newport, Kingston, Clayton, Dover, Lincoln, Weston, Burton, Preston,
        Salem, Oxford, Marion, Bristol, Fairview, Granby, Hartford, Somerton
    """),
    nouns=phrases("""
        Apples, Aprons, Bags, Baskets, Batteries, Blankets, Bottles, Bowls, Boxes, Brushes, Buckets, Bulbs, Buttons,
        Cables, Candles, Carpets, Chairs, Cheese, Clocks, Coffee, Cups, Curtains, Cushions, Desks, Drills,
        Envelopes, Files, Flour, Folders, Forks, Glasses, Gloves, Hammers, Hats, Helmets, Honey, Hooks, Keyboards,
        Knives, Ladders, Lamps, Lemons, Locks, Markers, Mirrors, Nails, Napkins, Notebooks, Olives, Onions, Paint,
        Paper, Pears, Pencils, Pillows, Plates, Pots, Pumps, Ropes, Rulers, Salt, Saws, Scissors, Screws, Shelves,
        Shirts, Shovels, Soap, Spoons, Stools, Sugar, Tables, Tape, Tea, Tents, Tiles, Towels, Trays, Valves, Wheels
    """),
)
