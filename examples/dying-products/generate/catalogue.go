package main

// product is one line of the catalogue. Prices are in pence.
type product struct {
	name     string
	category string
	price    int
	demand   int // chance of a sale per store and day, in thousandths
	story    story
}

// story is what happens to a product in the two years of data.
type story int

const (
	steady   story = iota
	dying          // falls steadily to almost nothing in the last six months: the answer
	summer         // falls just as steeply from July to December, and did so the year before
	winter         // the other way round
	gap            // could not be had for seven weeks of autumn, then came back
	fad            // a spike in spring, then back to what it was
	launched       // new in the second year
	gone           // taken off sale long before: dead, not dying
)

var stores = []string{
	"Aberdeen", "Bath", "Bristol", "Cardiff", "Derby", "Durham", "Exeter", "Glasgow", "Hull", "Leeds", "Lincoln", "Luton",
	"Newport", "Norwich", "Oxford", "Perth", "Reading", "Ripon", "Truro", "York",
}

// The store whose till writes dates as 31/12/2025, and the price from which tills write a thousands separator.
const (
	slashDates = "Leeds"
	separator  = 100000
)

var names = []struct {
	category string
	price    int // of the cheapest; each next one costs a little more
	names    [10]string
}{
	{"bakery", 120, [10]string{"Rye Loaf", "Oat Biscuits", "Seeded Rolls", "Malt Bread", "Ginger Snaps", "Corn Crackers",
		"Fruit Scones", "Almond Tart", "Cheese Straws", "Flatbread"}},
	{"drinks", 150, [10]string{"Still Water", "Ginger Beer", "Iced Lemon Tea", "Apple Juice", "Cold Brew", "Tomato Juice",
		"Elderflower Cordial", "Cola Zero", "Tonic Water", "Oat Drink"}},
	{"pantry", 180, [10]string{"Basmati Rice", "Red Lentils", "Chickpeas", "Passata", "Olive Oil", "Wild Honey",
		"Peanut Butter", "Couscous", "Black Beans", "Stock Cubes"}},
	{"frozen", 220, [10]string{"Ice Lollies", "Garden Peas", "Vanilla Ice Cream", "Fish Fingers", "Berry Mix", "Spinach Blocks",
		"Potato Waffles", "Pizza Base", "Frozen Yoghurt", "Dumplings"}},
	{"household", 250, [10]string{"Washing Powder", "Sponges", "Bin Bags", "Candle Set", "Light Bulbs", "Batteries AA",
		"Descaler", "Glass Cleaner", "Paper Towels", "Drain Gel"}},
	{"body", 300, [10]string{"Sun Cream", "Hand Soap", "Lip Balm", "Shaving Foam", "Shampoo Bar", "Aftersun", "Tooth Powder",
		"Bath Salts", "Face Wipes", "Hair Wax"}},
	{"garden", 450, [10]string{"Charcoal", "Watering Can", "Paddling Pool", "Seed Compost", "Slug Pellets", "Bird Seed",
		"Lawn Feed", "Hose Reel", "Plant Pots", "Snow Shovel"}},
	{"stationery", 200, [10]string{"Gel Pens", "Notebook A5", "Index Cards", "Desk Diary", "Sticky Notes", "Fax Paper",
		"Highlighters", "Envelopes", "Masking Tape", "Drawing Pad"}},
	{"electronics", 1900, [10]string{"USB Cable", "Phone Case", "DVD Rewriter", "Desk Fan", "Earbuds", "Wall Charger",
		"Fan Heater", "Memory Card", "MP3 Player", "Webcam"}},
	{"toys", 900, [10]string{"Wooden Blocks", "Fidget Cube", "Jigsaw 500", "Water Pistol", "Card Game", "Toy Tractor",
		"Kite", "Modelling Clay", "Puppet", "Marbles"}},
	{"clothing", 1200, [10]string{"Wool Socks", "Sun Hat", "Rain Jacket", "Thermal Gloves", "Linen Shirt", "Flip Flops",
		"Denim Apron", "Knit Scarf", "Running Vest", "Belt"}},
	{"furniture", 64900, [10]string{"Bookcase", "Desk Oak", "Parasol Base", "Armchair", "Office Chair", "Media Unit",
		"Dining Table", "Corner Sofa", "Wardrobe", "Bed Frame"}},
}

var stories = map[string]story{
	"Malt Bread": dying, "Tomato Juice": dying, "Descaler": dying, "Hair Wax": dying, "Fax Paper": dying,
	"DVD Rewriter": dying, "Media Unit": dying,

	"Iced Lemon Tea": summer, "Ice Lollies": summer, "Frozen Yoghurt": summer, "Sun Cream": summer, "Aftersun": summer,
	"Charcoal": summer, "Paddling Pool": summer, "Desk Fan": summer, "Water Pistol": summer, "Sun Hat": summer,
	"Flip Flops": summer, "Parasol Base": summer,

	"Snow Shovel": winter, "Fan Heater": winter, "Thermal Gloves": winter, "Knit Scarf": winter, "Desk Diary": winter,

	"Olive Oil": gap, "Batteries AA": gap,
	"Fidget Cube": fad,
	"Cold Brew":   launched, "Shampoo Bar": launched,
	"MP3 Player": gone,
}

// season is what a seasonal product sells in each month, in thousandths of its best month. Winter is summer half a year on.
var season = [12]int{40, 50, 120, 300, 600, 900, 1000, 900, 450, 180, 80, 40}

// catalogue is every product with its price and demand.
func catalogue(r *random) []product {
	var all []product
	for _, c := range names {
		for i, name := range c.names {
			price := c.price + c.price*i/7 + r.below(9)*10 + 9
			all = append(all, product{name, c.category, price, 100 + r.below(150), stories[name]})
		}
	}
	return all
}
